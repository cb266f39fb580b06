-- Decides calls on the buckets in KEYS as the algorithms in src/engine/algorithm do: together, all or
-- nothing, or those of several callers one after another, each on its own.
--
-- ARGV[1] is packed: flags of the run, a byte, and the slack in milliseconds, four bytes; the instant
-- (seconds and nanoseconds, a double each) unless it is the server's time; then for each bucket its
-- flags, its algorithm and its verb, a byte each, and the parameters of its algorithm, a double each.
-- A run with short token buckets only has the flags, the cost and the burst of each. By the general
-- road, the same decisions take 1.5 to 2 times the server's processor time alone, and 1.4 to 1.6 times
-- in company ("one long limit" of `make bench BENCH=redis_server`).
--
-- Reply: the instant (seconds and nanoseconds), then two for each bucket: the verdict, and the
-- value that was found (false if none, 0 if what was found is no state of this algorithm). If the
-- server has no memory for a write, or its clock is in none of the given calendar windows, the verdict
-- is 2, and the error follows in place of the value.
--
-- Only a value of another type, of another format or of a lifetime that no limiter writes counts as
-- no state. Any other error is returned: a user without the right to read must not be unlimited.
--
-- Numbers are doubles, exact below 2^53. So an instant is two numbers, seconds and nanoseconds,
-- which are only added and compared. Tallies count whole milliseconds. Numbers that become
-- arguments are formatted with %.0f, as tostring rounds them.

-- The flags of codec.rs, of a call and of the run: all calls are on short token buckets; the instant is
-- given.
local DECIDES, MAY_WRITE, IS_ALONE = 1, 2, 4
local IS_SHORT, HAS_INSTANT = 1, 2

local END = '9223372036854775807' -- 2^63 - 1 ns
local CLEAR = '' -- the new value of a bucket in which nothing is held, whose key is deleted

local call, pcall, find, format, sub = redis.call, redis.pcall, string.find, string.format, string.sub
local ceil, floor, unpack = math.ceil, math.floor, struct.unpack

local packed = ARGV[1]
local mode, slack, at = unpack('<BI4', packed)
local is_short, has_server_time = mode % 2 == IS_SHORT, mode < HAS_INSTANT
local now_s, now_n
if has_server_time then
  local time = call('TIME')
  now_s, now_n = tonumber(time[1]), time[2] * 1000
else
  now_s, now_n, at = unpack('<dd', packed, at)
end

-- Decides the calls of a run that is not on short token buckets only. Each run of a script creates its
-- functions and constants again, so these are created only if they are needed.
local decide
if not is_short then
  -- The numbers of codec.rs.
  local TOKEN_BUCKET, LEAKY_BUCKET, FIXED_WINDOW, FIXED_RATE_WINDOW = 1, 2, 3, 4
  local IN_FLIGHT, CALENDAR_WINDOW = 5, 6
  -- A check is a spend that may not write.
  local REFUND, CHARGE, CHARGE_PARTIAL, RELEASE, RENEW, CHARGE_AFTER = 3, 4, 5, 6, 7, 8

  local END_S, END_N = 9223372036, 854775807
  local MAX_MS, MAX_TALLY = 8796093022207, 1048575 -- 43 and 20 bits
  local MAX_SLOTS = 32767 -- 15 bits
  local MAX_USED = 999999999
  local UNKNOWN_WINDOW =
    'the clocks of the server and of this machine differ by more than a calendar window'

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

  local now_ms = now_s * 1000 + floor(now_n / 1000000)

  local function is_later(s, n, other_s, other_n)
    return s > other_s or (s == other_s and n > other_n)
  end

  local function add(s, n, more_s, more_n)
    s, n = s + more_s, n + more_n
    if n >= 1000000000 then
      return s + 1, n - 1000000000
    end
    return s, n
  end

  local function subtract(s, n, less_s, less_n)
    s, n = s - less_s, n - less_n
    if n < 0 then
      return s - 1, n + 1000000000
    end
    return s, n
  end

  local function clamp(s, n, to_s, to_n)
    if is_later(s, n, to_s, to_n) then
      return to_s, to_n
    end
    return s, n
  end

  -- The largest multiple of a time that is at most another, found by doubling.
  local function multiple_within(s, n, max_s, max_n)
    local doubled = {}
    while not is_later(s, n, max_s, max_n) do
      doubled[#doubled + 1] = { s, n }
      s, n = add(s, n, s, n)
    end
    local sum_s, sum_n = 0, 0
    for index = #doubled, 1, -1 do
      local more_s, more_n = add(sum_s, sum_n, doubled[index][1], doubled[index][2])
      if not is_later(more_s, more_n, max_s, max_n) then
        sum_s, sum_n = more_s, more_n
      end
    end
    return sum_s, sum_n
  end

  local function token_bucket(key, found, verb, cost_s, cost_n, burst_s, burst_n, token_s, token_n)
    local full_s, full_n = add(now_s, now_n, burst_s, burst_n)
    local latest_s, latest_n = add(full_s, full_n, burst_s, burst_n)
    latest_s, latest_n = clamp(latest_s, latest_n, END_S, END_N)
    local costs = cost_s > 0 or cost_n > 0
    local s, n = now_s, now_n
    if found then
      local tat_s, tat_n = read_instant(found)
      if not tat_s then
        found = 0
      elseif is_later(tat_s, tat_n, s, n) then
        local ahead = (tat_s - now_s) * 1000 + (tat_n - now_n) / 1000000
        if is_later(tat_s, tat_n, latest_s, latest_n) and is_damaged(key, ahead) then
          found = 0
        else
          s, n = tat_s, tat_n
        end
      end
    end
    local allowed, changes = false, false
    if verb == REFUND then
      local new_s, new_n = subtract(s, n, cost_s, cost_n)
      if is_later(now_s, now_n, new_s, new_n) then
        new_s, new_n = now_s, now_n
      end
      allowed = new_s ~= s or new_n ~= n
      changes, s, n = allowed, new_s, new_n
    else
      local new_s, new_n = add(s, n, cost_s, cost_n)
      local max_s, max_n = full_s, full_n
      if verb == CHARGE_AFTER then
        if is_later(s, n, full_s, full_n) then
          return false, found
        end
        verb = CHARGE_PARTIAL
      end
      if verb == CHARGE or verb == CHARGE_PARTIAL then
        max_s, max_n = latest_s, latest_n
        if is_later(s, n, latest_s, latest_n) then
          -- A limit with a larger burst wrote this TAT: nothing can be charged.
          return not costs, found
        end
      end
      allowed = not is_later(new_s, new_n, max_s, max_n)
      changes = allowed and costs
      if not allowed and verb == CHARGE_PARTIAL then
        local left_s, left_n = subtract(max_s, max_n, s, n)
        local more_s, more_n = multiple_within(token_s, token_n, left_s, left_n)
        new_s, new_n = add(s, n, more_s, more_n)
        changes = more_s > 0 or more_n > 0
      end
      if changes then
        s, n = clamp(new_s, new_n, END_S, END_N)
      end
    end
    if not changes then
      return allowed, found
    end
    local ttl = (s - now_s) * 1000 + ceil((n - now_n) / 1000000)
    return allowed, found, format('%.0f%09.0f', s, n), ttl
  end

  -- A calendar window's value is its end in seconds, and the tokens used in place of nanoseconds. The
  -- caller knows the calendar: the start of the window before the one of its clock, and three ends.
  local function calendar_window(key, found, verb, cost, count, before, start, finish, after)
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
    local allowed, change = cost <= count - used, cost
    if verb == CHARGE_AFTER then
      if used > count then
        return false, found
      end
      verb = CHARGE_PARTIAL
    end
    if verb == REFUND then
      change = -min(cost, used)
      allowed = change < 0
    elseif verb == CHARGE or verb == CHARGE_PARTIAL then
      local most = min(2 * count, MAX_USED) - used
      allowed = cost <= most
      if not allowed then
        change = verb == CHARGE_PARTIAL and max(most, 0) or 0
      end
    elseif not allowed then
      change = 0
    end
    if change == 0 then
      return allowed, found
    end
    used = used + change
    local ttl = (s - now_s) * 1000 + ceil((used - now_n) / 1000000)
    return allowed, found, format('%.0f%09.0f', s, used), ttl
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

  -- `length` is in milliseconds: a period, or the time between drips. `other` is the size of a drip, or
  -- the phase of windows, below 0 if they start at the first request.
  local function tallied(key, found, algorithm, verb, cost, size, length, other, burst)
    local at_ms, rest_ns = now_ms, now_n % 1000000
    if at_ms >= MAX_MS then
      at_ms, rest_ns = MAX_MS, 0
    end
    -- How long a full bucket lasts.
    local lasts = length
    if algorithm == LEAKY_BUCKET then
      lasts = length * ceil(size / other)
    end
    local start, tally, memory = at_ms, 0, 0
    local is_held = false
    if found then
      local held_start, held_tally, held_memory = read_tally(found)
      if not held_start then
        found = 0
      elseif held_start + held_memory <= at_ms then
        -- The bucket is full again, so a store may have dropped it.
        found = false
      else
        local is_long = held_start + max(held_memory, length) > at_ms + 2 * lasts
        if
          (is_long or held_tally > 2 * size)
          and is_damaged(key, held_start + held_memory - now_ms)
        then
          found = 0
        else
          is_held, start, tally, memory = true, held_start, held_tally, held_memory
        end
      end
    end
    -- What a spend, a charge and a refund may take or return.
    local room, most, returnable
    if algorithm == LEAKY_BUCKET then
      local drips = max(floor((at_ms - start) / length), 0)
      tally = max(tally - drips * other, 0)
      start = tally > 0 and start + drips * length or at_ms
      room, most, returnable = size - tally, 2 * size - tally, tally
    else
      local is_open = false
      if is_held then
        -- A window that started before the clock's origin is kept as starting at it.
        if start == 0 and other > 0 then
          start = other - length
        end
        is_open = at_ms < start + length
      end
      if not is_open then
        start, tally = at_ms, 0
        if other >= 0 then
          start = at_ms - (at_ms - other) % length
        end
      end
      if algorithm == FIXED_WINDOW then
        room, most, returnable = size - tally, 2 * size - tally, tally
      else
        local slot = open_slot(at_ms - start, rest_ns, size, length)
        tally = max(tally, slot)
        room = slot + 1 + burst - tally
        most = 2 * (size + burst) - tally
        returnable = tally - slot
      end
    end
    most = min(most, MAX_TALLY - tally)
    local allowed, change
    if verb == CHARGE_AFTER then
      if room < 0 then
        return false, found
      end
      verb = CHARGE_PARTIAL
    end
    if verb == REFUND then
      change = -min(cost, max(returnable, 0))
      allowed = change < 0
    elseif verb == CHARGE or verb == CHARGE_PARTIAL then
      change = cost
      if cost > most then
        change = verb == CHARGE_PARTIAL and max(most, 0) or 0
      end
      allowed = change == cost
    else
      allowed = cost <= room
      change = allowed and cost or 0
    end
    if change == 0 then
      return allowed, found
    end
    tally, start = tally + change, max(start, 0)
    if algorithm == LEAKY_BUCKET then
      lasts = length * ceil(max(size, tally) / other)
    end
    -- The longest that a live bucket was written with applies.
    memory = max(memory, lasts)
    return allowed, found, format('%.0f:%.0f:%.0f', start, tally, memory), max(start + memory - now_ms, 0)
  end

  -- Slots in flight. The value is that of a tally: ms * 2^20 + tally is the word, whose lowest 30 bits are
  -- the slots of the current and of the previous epoch, and whose rest is the start of the current epoch
  -- in 1024 ms. `lease_start` and `lease_epoch` are those of a release or a renewal.
  local function in_flight(key, found, verb, cost, count, epoch, lease_start, lease_epoch)
    local at_ms = min(now_ms, MAX_MS)
    local unit = floor(at_ms / 1024)
    local start, current, previous, memory = unit, 0, 0, 0
    local lasts = 2 * epoch * 1024
    local is_held = false
    if found then
      local ms, tally, held_memory = read_tally(found)
      if not ms then
        found = 0
      elseif ms + held_memory <= at_ms then
        found = false
      elseif
        ms + max(held_memory, lasts) > at_ms + 2 * lasts
        and is_damaged(key, ms + held_memory - now_ms)
      then
        found = 0
      else
        is_held, start, memory = true, floor(ms / 1024), held_memory
        current, previous = (ms % 1024) * 32 + floor(tally / 32768), tally % 32768
        local epochs = floor((unit - start) / epoch)
        if epochs == 1 then
          start, current, previous = start + epoch, 0, current
        elseif epochs > 1 then
          start, current, previous = unit, 0, 0
        end
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
      elseif not is_current then
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
    -- The longest that a live bucket was written with applies.
    memory = max(memory, lasts)
    local ms = start * 1024 + floor(current / 32)
    local value = format('%.0f:%.0f:%.0f', ms, (current % 32) * 32768 + previous, memory)
    return allowed, found, value, max(ms + memory - now_ms, 0)
  end

  -- Returns whether it is allowed, `nil` if it cannot be decided; the value that was found as in the
  -- reply; the new value if it changes, and its time to live.
  decide = function(key, found)
    local algorithm, verb
    algorithm, verb, at = unpack('BB', packed, at)
    if algorithm == CALENDAR_WINDOW then
      local cost, count, before, start, finish, after
      cost, count, before, start, finish, after, at = unpack('<dddddd', packed, at)
      return calendar_window(key, found, verb, cost, count, before, start, finish, after)
    end
    if algorithm == TOKEN_BUCKET then
      local cost_s, cost_n, burst_s, burst_n, token_s, token_n
      cost_s, cost_n, burst_s, burst_n, token_s, token_n, at = unpack('<dddddd', packed, at)
      return token_bucket(
        key, found, verb, cost_s, cost_n, burst_s, burst_n, token_s, token_n
      )
    end
    local is_tallied = algorithm >= LEAKY_BUCKET and algorithm <= FIXED_RATE_WINDOW
    if not is_tallied and algorithm ~= IN_FLIGHT then
      return error('no algorithm of the script has the number ' .. algorithm)
    end
    local cost, size, length, other, burst
    cost, size, length, other, burst, at = unpack('<ddddd', packed, at)
    if algorithm == IN_FLIGHT then
      return in_flight(key, found, verb, cost, size, length, other, burst)
    end
    return tallied(key, found, algorithm, verb, cost, size, length, other, burst)
  end
end

-- Tables are made with room for one bucket, and only if they are needed: growing one is expensive.
local reply = { now_s, now_n, 0, 0 }
local values, ttls
local keys, count, is_allowed = KEYS, #KEYS, true
for index = 1, count do
  local key = keys[index]
  local found = pcall('GET', key)
  -- Strings have no such field.
  local why = found and found.err
  if why then
    if sub(why, 1, 9) ~= 'WRONGTYPE' then
      return found
    end
    -- A value of no format.
    found = ''
  end
  local flags, allowed, value, ttl
  if is_short then
    -- A spend or a check whose times take less than 2^52 ns: how far a TAT is ahead of the instant is
    -- exact wherever the bucket allows. It calls no function of this script, for the same reason.
    local cost, burst
    flags, cost, burst, at = unpack('<Bdd', packed, at)
    local ahead = 0
    if found then
      if #found <= 19 and find(found, '^%d+$') then
        local s, n = #found > 9 and sub(found, 1, -10) or 0, sub(found, -9)
        ahead = (s - now_s) * 1000000000 + (n - now_n)
        if ahead < 0 then
          ahead = 0
        elseif ahead > 2 * burst then
          local left = call('PTTL', key)
          if
            left < 0
            or (has_server_time and ahead / 1000000 > left + slack)
            or (#found == 19 and found > END)
          then
            found, ahead = 0, 0
          end
        end
      else
        found = 0
      end
    end
    ahead = ahead + cost
    allowed = ahead <= burst
    if allowed and cost > 0 then
      local n = now_n + ahead
      local more_s = floor(n / 1000000000)
      value = format('%d%09d', now_s + more_s, n - more_s * 1000000000)
      ttl = ceil(ahead / 1000000)
    end
  else
    flags, at = unpack('B', packed, at)
    allowed, found, value, ttl = decide(key, found)
  end
  reply[index * 2 + 1] = allowed and 1 or allowed == nil and 2 or 0
  reply[index * 2 + 2] = found
  if not allowed and (allowed == nil or flags % 2 == DECIDES) then
    is_allowed = false
  end
  if flags % 4 < MAY_WRITE then
    value = nil
  end
  -- A call on its own is written at once, because the next one may be on the same bucket. Those of a
  -- batch are written after the last one, if all allow.
  local first = index
  if flags < IS_ALONE then
    values, ttls = values or {}, ttls or {}
    first = index + 1
  end
  if values then
    values[index], ttls[index] = value, ttl
    if is_allowed and index == count then
      first = 1
    end
  end
  for other = first, index do
    if values then
      key, value, ttl = keys[other], values[other], ttls[other]
      values[other] = nil
    end
    if value then
      if value == CLEAR then
        call('DEL', key)
      else
        local written = pcall('SET', key, value, 'PX', format('%.0f', ttl + slack))
        if written.err then
          if not find(written.err, 'OOM', 1, true) then
            -- Every other write fails, too: none has succeeded.
            return written
          end
          reply[other * 2 + 1], reply[other * 2 + 2] = 2, written.err
        end
      end
    end
  end
end
return reply
