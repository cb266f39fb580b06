local MAX_USED = 999999999
local UNKNOWN_WINDOW =
  'the clocks of the server and of this machine differ by more than a calendar window'

-- A calendar window's value is its end in seconds, and the tokens used in place of nanoseconds. The
-- caller knows the calendar: the start of the window before the one of its clock, and three ends.
decide_by[#decide_by + 1] = function(key, found, verb, cost, count, before, start, finish, after)
  local s, used
  if found then
    s, used = read_instant(found)
    if not s or (s > after and is_damaged(key, (s - now_s) * 1000)) then
      found, s = 0, nil
    elseif s <= now_s then
      s = nil
    end
  end
  if not s then
    if now_s < before or now_s >= after then
      return nil, UNKNOWN_WINDOW
    end
    s, used = now_s < start and start or now_s < finish and finish or after, 0
  end
  local most = min(2 * count, MAX_USED) - used
  local allowed, change = taken(verb, cost, count - used, most, used)
  if change == 0 then
    return allowed, found
  end
  used = used + change
  local ttl = (s - now_s) * 1000 + ceil((used - now_n) / 1000000)
  return allowed, found, format('%.0f%09d', s, used), ttl
end
