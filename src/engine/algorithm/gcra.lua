-- The value is the TAT in nanoseconds. Times are seconds and nanoseconds.

local END_S, END_N = 9223372036, 854775807

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

decide_by[#decide_by + 1] = function(key, found, verb, cost_s, cost_n, burst_s, burst_n, token_s, token_n)
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
  return allowed, found, format('%.0f%09d', s, n), ttl
end
