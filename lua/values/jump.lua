-- jump: a counter of ids above every id given before, for a Redis that has lost writes.

-- Returns the server's time in microseconds; if `known` is not below the time, a number above
-- `known` instead. Redis may lose that number. Then the next call has the same `known`, and its
-- number must be higher. So the distance from `known` grows with the time; after 18 minutes the
-- distance starts again.
local function beyond(known)
  local now_us = rare.time.now_us()
  return now_us > known and now_us or known + 1000000 + now_us % 1073741824
end

return { beyond = beyond }
