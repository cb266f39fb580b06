-- Decides spends from token buckets, each on its own, as decide.lua does, which takes several times
-- as long.
--
-- ARGV: the instant (seconds and nanoseconds; both empty for the server's time) and the slack in
-- milliseconds, then two for each bucket in KEYS: the cost and the burst offset in nanoseconds.
--
-- Reply: the instant (seconds and nanoseconds), then two for each bucket: the verdict, and the
-- value that was found (false if none, 0 if what was found is no state of a token bucket). If the
-- server has no memory for a write, the verdict is 2, and the error follows in place of the value.
-- What counts as no state is explained in decide.lua.
--
-- Numbers are doubles, exact below 2^53. Costs and burst offsets are below 2^52, so how far a TAT is
-- ahead of the instant is exact wherever the bucket allows; the instant itself is two numbers.

local END_S, END_N = 9223372036, 854775807 -- 2^63 - 1 ns
local pcall, find, format, sub = redis.pcall, string.find, string.format, string.sub

local now_s, now_n = tonumber(ARGV[1]), tonumber(ARGV[2])
local has_server_time = not now_s
if has_server_time then
  local time = redis.call('TIME')
  now_s, now_n = tonumber(time[1]), tonumber(time[2]) * 1000
end
local slack = tonumber(ARGV[3])
local reply = { now_s, now_n }

for index = 1, #KEYS do
  local key, at = KEYS[index], index * 2
  local cost, burst = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local found = pcall('GET', key)
  local ahead = 0
  if type(found) == 'table' then
    if sub(found.err, 1, 9) ~= 'WRONGTYPE' then
      -- The same holds for every other read: nothing was written.
      return found
    end
    found = 0
  elseif found then
    local s, n
    if #found <= 19 and find(found, '^%d+$') then
      s, n = tonumber(sub(found, 1, -10)) or 0, tonumber(sub(found, -9))
    end
    if not s or s > END_S or (s == END_S and n > END_N) then
      found = 0
    else
      ahead = math.max((s - now_s) * 1000000000 + (n - now_n), 0)
      if ahead > 2 * burst then
        local left = redis.call('PTTL', key)
        if left < 0 or (has_server_time and ahead / 1000000 > left + slack) then
          found, ahead = 0, 0
        end
      end
    end
  end
  local verdict = 0
  if ahead + cost <= burst then
    verdict, ahead = 1, ahead + cost
  end
  if cost > 0 and verdict == 1 then
    local n = now_n + ahead
    local more_s = math.floor(n / 1000000000)
    local value = format('%d%09d', now_s + more_s, n - more_s * 1000000000)
    local ttl = math.ceil(ahead / 1000000) + slack
    local written = pcall('SET', key, value, 'PX', format('%.0f', ttl))
    if written.err then
      if not find(written.err, 'OOM', 1, true) then
        -- So is every other write: none has succeeded.
        return written
      end
      verdict, found = 2, written.err
    end
  end
  reply[at + 1], reply[at + 2] = verdict, found
end
return reply
