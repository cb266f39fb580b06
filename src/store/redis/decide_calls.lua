-- Reads and writes the buckets, and makes the reply.

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
      local rest_n, past_ms = n % 1000000000, ahead % 1000000
      value = format('%d%09d', now_s + (n - rest_n) / 1000000000, rest_n)
      ttl = (ahead - past_ms) / 1000000 + (past_ms > 0 and 1 or 0)
    end
  else
    local algorithm, verb, a, b, c, d, e, f
    flags, algorithm, verb, a, b, c, d, e, f, at = unpack('<BBBdddddd', packed, at)
    if not decide_by[algorithm] then
      return error('no algorithm of the script has the number ' .. algorithm)
    end
    allowed, found, value, ttl = decide_by[algorithm](key, found, verb, a, b, c, d, e, f)
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
        local px = ttl + slack
        local written = pcall('SET', key, value, 'PX', format(px <= MAX_INT and '%d' or '%.0f', px))
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
