-- Decides about the buckets in KEYS, all or nothing, as the algorithms in src/engine/algorithm do.
--
-- ARGV: the instant (seconds and nanoseconds; both empty for the server's time) and the slack in
-- milliseconds, then ten for each bucket: algorithm, verb, whether it decides, whether it may write,
-- and six parameters of the algorithm, the last ones empty.
--
-- Reply: the instant (seconds and nanoseconds), then two for each bucket: the verdict, and the
-- value that was found (false if none, 0 if what was found is no state of this algorithm).
--
-- Only a value of another type, of another format or of a lifetime that no limiter writes counts as
-- no state. Any other error is returned: a user without the right to read must not be unlimited.
--
-- Numbers are doubles, exact below 2^53. So an instant is two numbers, seconds and nanoseconds,
-- which are only added and compared. Tallies count whole milliseconds. Numbers that become
-- arguments are formatted with %.0f, as tostring rounds them.

-- The numbers of `verb_number` in codec.rs. A check is a spend that may not write.
local REFUND, CHARGE, CHARGE_PARTIAL = '3', '4', '5'
local END_S, END_N = 9223372036, 854775807 -- 2^63 - 1 ns
local MAX_MS, MAX_TALLY = 8796093022207, 1048575 -- 43 and 20 bits

local now_s, now_n
local has_server_time = ARGV[1] == ''
if has_server_time then
  local time = redis.call('TIME')
  now_s, now_n = tonumber(time[1]), tonumber(time[2]) * 1000
else
  now_s, now_n = tonumber(ARGV[1]), tonumber(ARGV[2])
end
local now_ms = now_s * 1000 + math.floor(now_n / 1000000)
local slack = tonumber(ARGV[3])

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

-- A token bucket's value is its TAT in nanoseconds.
local function read_instant(value)
  if #value > 19 or not value:find('^%d+$') then
    return nil
  end
  local s = tonumber(value:sub(1, -10)) or 0
  local n = tonumber(value:sub(-9))
  if is_later(s, n, END_S, END_N) then
    return nil
  end
  return s, n
end

-- Returns whether no limiter wrote this value: a limiter lets each value expire `slack` after its
-- end. Costs a command, so it is asked only about values that last longer than two full buckets. A
-- given instant has nothing to do with the time at which the server lets a key expire.
local function is_damaged(key, ends_ms)
  local left = redis.call('PTTL', key)
  return left < 0 or (has_server_time and ends_ms - now_ms > left + slack)
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

-- Returns the verdict, the new value if it changes, and its time to live. The verdict is nil if the
-- value is damaged.
local function token_bucket(key, value, verb, at)
  local cost_s, cost_n = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local burst_s, burst_n = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local full_s, full_n = add(now_s, now_n, burst_s, burst_n)
  local latest_s, latest_n = add(full_s, full_n, burst_s, burst_n)
  latest_s, latest_n = clamp(latest_s, latest_n, END_S, END_N)
  local costs = cost_s > 0 or cost_n > 0
  local s, n = now_s, now_n
  if value then
    local tat_s, tat_n = read_instant(value)
    if is_later(tat_s, tat_n, s, n) then
      s, n = tat_s, tat_n
    end
    if is_later(s, n, latest_s, latest_n) and is_damaged(key, s * 1000 + n / 1000000) then
      return nil
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
    if verb == CHARGE or verb == CHARGE_PARTIAL then
      max_s, max_n = latest_s, latest_n
      if is_later(s, n, latest_s, latest_n) then
        -- A limit with a larger burst wrote this TAT: nothing can be charged.
        return not costs
      end
    end
    allowed = not is_later(new_s, new_n, max_s, max_n)
    changes = allowed and costs
    if not allowed and verb == CHARGE_PARTIAL then
      local left_s, left_n = subtract(max_s, max_n, s, n)
      local token_s, token_n = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
      local more_s, more_n = multiple_within(token_s, token_n, left_s, left_n)
      new_s, new_n = add(s, n, more_s, more_n)
      changes = more_s > 0 or more_n > 0
    end
    if changes then
      s, n = clamp(new_s, new_n, END_S, END_N)
    end
  end
  if not changes then
    return allowed
  end
  local ttl = (s - now_s) * 1000 + math.ceil((n - now_n) / 1000000)
  return allowed, string.format('%.0f%09.0f', s, n), ttl
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
  local slot = math.floor(product / period_ms) * 1024
  product = (product % period_ms) * 1024
  slot = slot + math.floor(product / period_ms)
  product = product % period_ms + elapsed_ms * low + math.floor(rest_ns * count / 1000000)
  return slot + math.floor(product / period_ms)
end

-- Returns the same as `token_bucket`.
local function tallied(key, value, algorithm, verb, at)
  local cost, size = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local length = tonumber(ARGV[at + 2]) -- ms: a period, or the time between drips
  local at_ms, rest_ns = now_ms, now_n % 1000000
  if at_ms >= MAX_MS then
    at_ms, rest_ns = MAX_MS, 0
  end
  local start, tally, memory = at_ms, 0, 0
  -- How long a full bucket lasts.
  local lasts, drip = length, nil
  if algorithm == 'leaky-bucket' then
    drip = tonumber(ARGV[at + 3])
    lasts = length * math.ceil(size / drip)
  end
  if value then
    start, tally, memory = read_tally(value)
    local is_long = math.max(start + memory, start + length) > at_ms + 2 * lasts
    if (is_long or tally > 2 * size) and is_damaged(key, start + memory) then
      return nil
    end
  end
  -- What a spend, a charge and a refund may take or return.
  local room, most, returnable
  if algorithm == 'leaky-bucket' then
    local drips = math.max(math.floor((at_ms - start) / length), 0)
    tally = math.max(tally - drips * drip, 0)
    start = tally > 0 and start + drips * length or at_ms
    room, most, returnable = size - tally, 2 * size - tally, tally
  else
    local phase = tonumber(ARGV[at + 3]) -- below 0: windows start at the first request
    local is_open = false
    if value then
      -- A window that started before the clock's origin is kept as starting at it.
      if start == 0 and phase > 0 then
        start = phase - length
      end
      is_open = at_ms < start + length
    end
    if not is_open then
      start, tally = at_ms, 0
      if phase >= 0 then
        start = at_ms - (at_ms - phase) % length
      end
    end
    if algorithm == 'fixed-window' then
      room, most, returnable = size - tally, 2 * size - tally, tally
    else
      local burst = tonumber(ARGV[at + 4])
      local slot = open_slot(at_ms - start, rest_ns, size, length)
      tally = math.max(tally, slot)
      room = slot + 1 + burst - tally
      most = 2 * (size + burst) - tally
      returnable = tally - slot
    end
  end
  most = math.min(most, MAX_TALLY - tally)
  local allowed, change
  if verb == REFUND then
    change = -math.min(cost, math.max(returnable, 0))
    allowed = change < 0
  elseif verb == CHARGE or verb == CHARGE_PARTIAL then
    change = cost
    if cost > most then
      change = verb == CHARGE_PARTIAL and math.max(most, 0) or 0
    end
    allowed = change == cost
  else
    allowed = cost <= room
    change = allowed and cost or 0
  end
  if change == 0 then
    return allowed
  end
  tally, start = tally + change, math.max(start, 0)
  if algorithm == 'leaky-bucket' then
    lasts = length * math.ceil(math.max(size, tally) / drip)
  end
  -- The longest that a live bucket was written with applies.
  memory = math.max(memory, lasts)
  local text = string.format('%.0f:%.0f:%.0f', start, tally, memory)
  return allowed, text, start + memory - now_ms
end

local function decide(key, value, algorithm, verb, at)
  if algorithm == 'token-bucket' then
    return token_bucket(key, value, verb, at)
  end
  return tallied(key, value, algorithm, verb, at)
end

-- Whether a value is a state of the algorithm, and whether it still has an effect.
local function read_state(value, algorithm)
  if algorithm == 'token-bucket' then
    return read_instant(value) ~= nil, true
  end
  local start, _, memory = read_tally(value)
  return start ~= nil, start and start + memory > math.min(now_ms, MAX_MS)
end

local reply = { now_s, now_n }
local values, ttls = {}, {}
local is_allowed = true
for index, key in ipairs(KEYS) do
  local at = index * 10 - 6
  local algorithm, verb = ARGV[at], ARGV[at + 1]
  local found = redis.pcall('GET', key)
  local value = found
  if type(found) == 'table' then
    if found.err:sub(1, 9) ~= 'WRONGTYPE' then
      return found
    end
    found, value = 0, false
  elseif found then
    local is_state, is_alive = read_state(found, algorithm)
    if not is_state then
      found, value = 0, false
    elseif not is_alive then
      found, value = false, false
    end
  end
  local allowed
  allowed, values[index], ttls[index] = decide(key, value, algorithm, verb, at + 4)
  if allowed == nil then
    found = 0
    allowed, values[index], ttls[index] = decide(key, false, algorithm, verb, at + 4)
  end
  if not allowed and ARGV[at + 2] == '1' then
    is_allowed = false
  end
  reply[index * 2 + 1] = allowed and 1 or 0
  reply[index * 2 + 2] = found
end
for index, key in ipairs(KEYS) do
  if values[index] and is_allowed and ARGV[index * 10 - 3] == '1' then
    local ttl = math.max(ttls[index], 0) + slack
    redis.call('SET', key, values[index], 'PX', string.format('%.0f', ttl))
  end
end
return reply
