-- detach: a worker process gives its name back.
--
-- Purpose   Holds what its slots still own, due now and without counting it, returns other names to
--           the markers, drops the lease, and wakes a worker. The name stays registered: a pop that
--           is still under way may move a marker, and that marker must be found.
-- Keys      KEYS[1] event.worker:NAME:lease (string, read and write); event.workers (hash),
--           event.workers.watched and event.workers.departed (zsets, written), objects.with.events
--           (list), objects.held (zset), event.worker:W:* of every slot, OBJ:event.worker,
--           OBJ:events.held, OBJ:events.held.id (read and write)
-- Arguments prefix; name; token (UUID)
-- Replies   {'detached', objects held} | {'lapsed'}: nothing left to do | {'fenced', lease}
-- Keeps     I1 to I4
-- Cost      O(slots)
-- Uses: fence.check slots.check_types slots.depart slots.each slots.hold_owned slots.register
-- Uses: slots.registered time.now_ms
local name, token = ARGV[2], ARGV[3]

local refused = M.fence.check(name, token)
if refused then
  return refused
end
local slots = M.slots.registered(name)
M.slots.check_types(name, slots)

local now_ms = M.time.now_ms()
local held = 0
M.slots.each(name, slots, function(at, slot, object, tag)
  M.slots.hold_owned(at, object, tag, now_ms, 'stop', false, 0)
  held = held + 1
end)
call('DEL', KEYS[1])
M.slots.register(name, slots, token, now_ms)
-- The first look comes a second from now: nothing is forgotten before.
M.slots.depart(name, now_ms, now_ms, math.huge)
if held > 0 then
  call('RPUSH', P .. K.objects_with_events, '')
end
return { 'detached', held }
