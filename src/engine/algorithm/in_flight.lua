local MAX_SLOTS = 32767 -- 15 bits

-- Slots in flight. The value is that of a tally: ms * 2^20 + tally is the word, whose lowest 30 bits are
-- the slots of the current and of the previous epoch, and whose rest is the start of the current epoch
-- in 1024 ms. `lease_start` and `lease_epoch` are those of a release or a renewal.
decide_by[#decide_by + 1] = function(key, found, verb, cost, count, epoch, lease_start, lease_epoch)
  local unit, lasts = floor(at_ms / 1024), 2 * epoch * 1024
  local start, current, previous = unit, 0, 0
  local ms, tally, memory
  found, ms, tally, memory = held(key, found, lasts, lasts, MAX_TALLY)
  local is_held = ms ~= nil
  if is_held then
    start = floor(ms / 1024)
    current, previous = (ms % 1024) * 32 + floor(tally / 32768), tally % 32768
    local epochs = floor((unit - start) / epoch)
    if epochs == 1 then
      start, current, previous = start + epoch, 0, current
    elseif epochs > 1 then
      start, current, previous = unit, 0, 0
    end
  end
  local allowed, changes = false, false
  if verb == RELEASE or verb == RENEW then
    local is_current = is_held and lease_start == start
    local is_previous = is_held
      and not is_current
      and lease_start == start - epoch
      and lease_epoch == epoch
    allowed = is_current or is_previous
    if verb == RELEASE then
      local returned = min(cost, is_current and current or is_previous and previous or 0)
      allowed = returned > 0
      if is_current then
        current = current - returned
      else
        previous = previous - returned
      end
      if is_held and current + previous == 0 then
        return allowed, found, CLEAR
      end
      changes = allowed
      if current == 0 then
        -- As in the epoch in which they were taken: the value ends when they expire.
        start, current, previous = start - epoch, previous, 0
      end
    elseif is_current then
      -- Written under a shorter lease: it would expire too early.
      changes = memory < lasts
    else
      if is_previous then
        previous = previous - min(cost, previous)
      end
      current = current + cost
      changes = current <= MAX_SLOTS
    end
  elseif verb < REFUND then
    allowed = current + previous + cost <= count
    changes = allowed and cost > 0
    current = current + cost
  end
  if not changes then
    return allowed, found
  end
  ms = start * 1024 + floor(current / 32)
  return allowed, found, tallied(ms, (current % 32) * 32768 + previous, max(memory or 0, lasts))
end
