-- time (passing): the server's clock, from which every time in Redis comes.
local asked_us

-- Returns the time of this call in microseconds since 1970.
local function now_us()
  if not asked_us then
    local time = redis_call('TIME')
    asked_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
  end
  return asked_us
end

-- Returns the time of this call in milliseconds since 1970.
local function now_ms()
  return math.floor(now_us() / 1000)
end

return { now_us = now_us, now_ms = now_ms }
