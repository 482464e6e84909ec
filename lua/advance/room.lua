-- room: the room of the process for batches that may kill it.
-- Uses: ids.text suspects.of time.now_ms
local SUSPECTS_ARG = 12
local wait_ms, admits, taken = M.suspects.of(ARGV[SUSPECTS_ARG])

-- Lets a due held object wait, so that it does not stop other objects. The wait grows with the
-- number of held objects, to limit the work of Redis.
local function put_off(object)
  local ms = math.max(wait_ms, math.min(math.floor(call('ZCARD', P .. K.objects_held) / 2), 10000))
  call('ZADD', P .. K.objects_held, M.ids.text(M.time.now_ms() + ms), object)
  C.held_changed = true
end

return { admits = admits, taken = taken, put_off = put_off }
