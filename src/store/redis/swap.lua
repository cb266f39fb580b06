-- Writes a bucket if it still holds what its caller saw; a caller decides by itself and tries again.
--
-- ARGV: the value expected (empty for none; ? for a read), the new value (empty to delete the key), and
-- its time to live in milliseconds.
--
-- Reply: the server's time (seconds and microseconds), whether it was written, and the value that
-- was found (false if none).

local time = redis.call('TIME')
local found = redis.pcall('GET', KEYS[1])
if type(found) == 'table' then
  if found.err:sub(1, 9) ~= 'WRONGTYPE' then
    return found
  end
  found = false
end
local is_same = (found or '') == ARGV[1]
if is_same and ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
elseif is_same then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return { tonumber(time[1]), tonumber(time[2]), is_same and 1 or 0, found }
