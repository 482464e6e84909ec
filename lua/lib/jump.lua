-- jump: a counter of ids above every id given before, for a Redis that has lost writes.
-- Uses: time.now_us

-- Returns the server's time in microseconds; if `known` is not below the time, a number above
-- `known` instead. The distance grows with the time: if Redis loses the jump, and no process
-- remembers it, the next jump goes further.
local function beyond(known)
  local now_us = M.time.now_us()
  return now_us > known and now_us or known + 1000000 + now_us % 1073741824
end

return { beyond = beyond }
