-- jump: a counter of ids beyond every id that was given, for when Redis does not know all of them
-- any more.
-- Uses: time.now_us

-- Returns the server's time in microseconds; if `known` is ahead of the time, a number beyond
-- `known` instead. The distance grows with the time: if Redis loses the jump, and nobody remembers
-- it, the next jump goes further.
local function beyond(known)
  local now_us = M.time.now_us()
  return now_us > known and now_us or known + 1000000 + now_us % 1073741824
end

return { beyond = beyond }
