-- Decides calls on the buckets in KEYS as the algorithms in src/engine/algorithm do: together, all or
-- nothing, or those of several callers one after another, each on its own.
--
-- ARGV[1] is packed: flags of the run, a byte, and the slack in milliseconds, four bytes; the instant
-- (seconds and nanoseconds, a double each) unless it is the server's time; then for each bucket its
-- flags, its algorithm and its verb, a byte each, and six numbers of its algorithm, a double each.
-- A run with short token buckets only has the flags, the cost and the burst of each. By the general
-- road, a busy server takes 1.4 times the processor time for the same decisions, 16 in one run, and
-- 1.75 times for one alone (64 runs at once on one connection). On a server that sleeps between calls, both
-- are 1.2 times ("one long limit" of `make bench BENCH=redis_server`).
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
-- arguments are formatted here: tostring rounds them. %d takes less than half the time of %.0f, but is
-- exact up to 2^31 only where a C long has 32 bits.

-- The flags of codec.rs, of a call and of the run: all calls are on short token buckets; the instant is
-- given.
local DECIDES, MAY_WRITE, IS_ALONE = 1, 2, 4
local IS_SHORT, HAS_INSTANT = 1, 2

local END = '9223372036854775807' -- 2^63 - 1 ns
local MAX_INT = 2147483647
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

-- How the algorithms decide, in the order of `algorithms!`. Each run of a script creates its functions and
-- constants again, so these and decide_shared.lua are in a block that short token buckets skip.
local decide_by
