-- room (passing): the room of the process for batches that may kill it.
local wait_ms, admits, taken = rare.suspects.of(call.suspects)

-- Lets a due held object wait, so that it does not stop other objects. The wait grows with the
-- number of held objects, to limit the work of Redis.
local function put_off(object)
  local ms = math.max(wait_ms, math.min(math.floor(redis_call('ZCARD', P .. K.objects_held) / 2), 10000))
  redis_call('ZADD', P .. K.objects_held, ids.text(rare.time.now_ms() + ms), object)
end

return { admits = admits, taken = taken, put_off = put_off }
