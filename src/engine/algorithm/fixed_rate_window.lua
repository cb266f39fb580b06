-- The slot of a fixed-rate window that is open: elapsed * count / period, rounded down. The product
-- exceeds 2^53, so count is split into two numbers of ten bits.
local function open_slot(elapsed_ms, rest_ns, count, period_ms)
  if elapsed_ms < 0 then
    return 0
  end
  local low = count % 1024
  local product = elapsed_ms * ((count - low) / 1024)
  local slot = floor(product / period_ms) * 1024
  product = (product % period_ms) * 1024
  slot = slot + floor(product / period_ms)
  product = product % period_ms + elapsed_ms * low + floor(rest_ns * count / 1000000)
  return slot + floor(product / period_ms)
end

decide_by[#decide_by + 1] = function(key, found, verb, cost, count, period, phase, burst)
  local start, tally, memory
  found, start, tally, memory = window(key, found, count, period, phase)
  local slot = open_slot(at_ms - start, rest_ns, count, period)
  tally = max(tally, slot)
  local most = min(2 * (count + burst), MAX_TALLY) - tally
  local allowed, change = taken(verb, cost, slot + 1 + burst - tally, most, tally - slot)
  if change == 0 then
    return allowed, found
  end
  return allowed, found, tallied(max(start, 0), tally + change, memory)
end
