-- What the algorithms share. The script of each follows, and adds its function to `decide_by`.
--
-- It is called with the key, what was found, the verb, and the numbers that `Description::wire` of the same
-- algorithm returns. It returns whether the call is allowed, `nil` if it cannot be decided; the value that was
-- found as in the reply; the new value if it changes, and its time to live.

-- A check is a spend that may not write.
local REFUND, CHARGE, CHARGE_PARTIAL, RELEASE, RENEW, CHARGE_AFTER = 3, 4, 5, 6, 7, 8

local MAX_MS, MAX_TALLY = 8796093022207, 1048575 -- 43 and 20 bits

local max, min = math.max, math.min

-- Returns whether no limiter wrote a value that ends `ahead` milliseconds from now: a limiter lets each
-- value expire `slack` after its end. Costs a command, so it is asked only about values that last
-- longer than two full buckets. A given instant has nothing to do with the server's expiry.
local function is_damaged(key, ahead)
  local left = call('PTTL', key)
  return left < 0 or (has_server_time and ahead > left + slack)
end

-- A token bucket's value is its TAT in nanoseconds.
local function read_instant(value)
  if #value > 19 or not find(value, '^%d+$') or (#value == 19 and value > END) then
    return nil
  end
  return tonumber(sub(value, 1, -10)) or 0, tonumber(sub(value, -9))
end

-- The instant of tallies.
local now_ms = now_s * 1000 + floor(now_n / 1000000)
local at_ms, rest_ns = now_ms, now_n % 1000000
if at_ms >= MAX_MS then
  at_ms, rest_ns = MAX_MS, 0
end

-- The value of a bucket with a tally is an instant in milliseconds, the tally, and how many
-- milliseconds after the instant it ends.
local function read_tally(value)
  local ms, tally, memory = value:match('^(%d+):(%d+):(%d+)$')
  if not ms or #ms > 13 or #tally > 7 or #memory > 15 then
    return nil
  end
  ms, tally, memory = tonumber(ms), tonumber(tally), tonumber(memory)
  if ms > MAX_MS or tally > MAX_TALLY then
    return nil
  end
  return ms, tally, memory
end

-- Returns what was found as in the reply and, if it is in use, its instant, its tally and its memory. A
-- value that lasts longer than two full buckets, which last `lasts`, or has a tally above `most`, may be
-- damaged.
local function held(key, found, length, lasts, most)
  if not found then
    return found
  end
  local start, tally, memory = read_tally(found)
  if not start then
    return 0
  end
  if start + memory <= at_ms then
    -- The bucket is full again, so a store may have dropped it.
    return false
  end
  local is_long = start + max(memory, length) > at_ms + 2 * lasts
  if (is_long or tally > most) and is_damaged(key, start + memory - now_ms) then
    return 0
  end
  return found, start, tally, memory
end

-- Returns whether a call is allowed, and how many tokens it takes: a spend up to `room`, a charge up to
-- `most`, unless the bucket is overdrawn if it is one of used tokens. A refund returns up to `returnable`.
local function taken(verb, cost, room, most, returnable)
  if verb == REFUND then
    local change = -min(cost, max(returnable, 0))
    return change < 0, change
  end
  if verb == CHARGE_AFTER then
    if room < 0 then
      return false, 0
    end
    verb = CHARGE_PARTIAL
  end
  if verb == CHARGE or verb == CHARGE_PARTIAL then
    local change = cost
    if cost > most then
      change = verb == CHARGE_PARTIAL and max(most, 0) or 0
    end
    return change == cost, change
  end
  return cost <= room, cost <= room and cost or 0
end

-- Returns a new value and its time to live. Its memory is the longest that a live bucket was written with.
local function tallied(start, tally, memory)
  return format('%.0f:%d:%.0f', start, tally, memory), max(start + memory - now_ms, 0)
end

-- Returns what was found as in the reply, and the start, the tally and the memory of the window of a call. The
-- phase is below 0 if windows start at the first request.
local function window(key, found, count, period, phase)
  local start, tally, memory
  found, start, tally, memory = held(key, found, period, period, 2 * count)
  -- A window that started before the clock's origin is kept as starting at it.
  if start == 0 and phase > 0 then
    start = phase - period
  end
  if not start or at_ms >= start + period then
    start, tally = at_ms, 0
    if phase >= 0 then
      start = at_ms - (at_ms - phase) % period
    end
  end
  return found, start, tally, max(memory or 0, period)
end

decide_by = {}
