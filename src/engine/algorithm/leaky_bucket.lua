-- Times are in milliseconds.
decide_by[#decide_by + 1] = function(key, found, verb, cost, size, rate, drip)
  local start, tally, memory
  found, start, tally, memory = held(key, found, rate, rate * ceil(size / drip), 2 * size)
  start, tally = start or at_ms, tally or 0
  local drips = max(floor((at_ms - start) / rate), 0)
  tally = max(tally - drips * drip, 0)
  start = tally > 0 and start + drips * rate or at_ms
  local most = min(2 * size, MAX_TALLY) - tally
  local allowed, change = taken(verb, cost, size - tally, most, tally)
  if change == 0 then
    return allowed, found
  end
  tally = tally + change
  -- An overdrawn bucket takes longer to drain.
  memory = max(memory or 0, rate * ceil(max(size, tally) / drip))
  return allowed, found, tallied(start, tally, memory)
end
