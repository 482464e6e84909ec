-- detach: a worker process gives its name back.
--
-- Purpose   Holds what its slots still own, due now and without counting it, returns other names to the markers, drops the lease, and wakes
--           a worker. The name stays registered: a pop that is still under way may move a marker, and that marker must be found.
-- Keys      KEYS[1] event.worker:NAME:lease (string, read and write); event.workers (hash), event.workers.watched and event.workers.departed (zsets,
--           written), objects.with.events (list), objects.held (zset),
--           event.worker:W:* of every slot, OBJ:event.worker, OBJ:events.held, OBJ:events.held.id (read and write)
-- Arguments prefix; name; token (UUID)
-- Replies   {'detached', objects held} | {'lapsed'}: nothing left to do | {'fenced', lease}
-- Keeps     I1 to I4
-- Cost      O(slots)
local name, token = ARGV[2], ARGV[3]

local refused = fence(name, token)
if refused then
  return refused
end
local slots = registered(name)
check_types(name, slots)

local now_ms = now()
local held = 0
each_slot(name, slots, function(at, slot, object, tag)
  hold_owned(at, object, tag, now_ms, 'stop', false, 0)
  held = held + 1
end)
redis.call('DEL', KEYS[1])
register(name, slots, token, now_ms)
-- The first look comes a second from now: nothing is forgotten before.
depart(name, now_ms, now_ms, math.huge)
if held > 0 then
  redis.call('RPUSH', P .. objects_with_events, '')
end
return { 'detached', held }
