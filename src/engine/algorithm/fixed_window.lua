-- Times are in milliseconds.
decide_by[#decide_by + 1] = function(key, found, verb, cost, count, period, phase)
  local start, tally, memory
  found, start, tally, memory = window(key, found, count, period, phase)
  local most = min(2 * count, MAX_TALLY) - tally
  local allowed, change = taken(verb, cost, count - tally, most, tally)
  if change == 0 then
    return allowed, found
  end
  return allowed, found, tallied(max(start, 0), tally + change, memory)
end
