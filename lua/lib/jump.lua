-- jump: a counter of ids beyond every id that was given, when Redis does not know them all any more.

-- Returns the server's time in microseconds; if `known` is ahead of the time, a number beyond `known` instead.
-- The distance grows with the time: if Redis loses the jump, and nobody remembers it, the next jump goes further.
local function beyond(known)
  local time = redis.call('TIME')
  local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
  return now_us > known and now_us or known + 1000000 + now_us % 1073741824
end
