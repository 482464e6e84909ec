-- suspects: held batches that may kill their worker are taken only while the caller has room for them.
local wait_ms, admits, taken = suspects_of(args[12])

-- Lets a due held object wait, so that it is not in the way of others. The more objects are held, the longer, so that Redis is not kept busy with it.
local function put_off(object)
  local ms = math.max(wait_ms, math.min(math.floor(call('ZCARD', P .. objects_held) / 2), 10000))
  call('ZADD', P .. objects_held, text_of(now_ms + ms), object)
end

return { admits = admits, taken = taken, put_off = put_off }
