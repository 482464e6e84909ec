-- detach: a worker process gives its name back.
--
-- Purpose   Holds the objects that the name's slots own, due now, without counting a crash. Moves
--           all other names in the slots' lists back to the markers, and deletes the lease. If an
--           object is held, wakes a worker. The name stays registered: a pop under way may still
--           move a marker to one of its slots, and another process must find that marker. A random
--           name, which no process takes again, is forgotten after ten minutes.
-- Keys      KEYS[1] event.worker:NAME:lease (string, read and write)
--           event.workers (hash), event.workers.watched, event.workers.departed (zsets): written
--           objects.with.events (list), objects.held (zset): read and write
--           event.worker:W:* of every slot, OBJ:event.worker, OBJ:events.held, OBJ:events.held.id:
--           read and write
-- Arguments prefix
--           name
--           token (UUID)
-- Replies   {'detached', objects held, {name, what, …}}; name, what: as in the reply of attach
--           {'lapsed'}: nothing is left to do
--           {'fenced', lease}
-- Keeps     I1 to I4
-- Cost      O(slots). If the registration is lost, 2 commands more, with 1,024 keys each, and if these
--           find something, up to 2,048 with one key
local name, token = ARGV[2], ARGV[3]

local refused = rare.fence.check(name, token)
if refused then
  return refused
end
-- A registration has at least one slot, even if it was lost and the slots have nothing.
local slots = rare.slots.known(name, 1)
rare.slots.check_types(name, slots)

local now_ms = rare.time.now_ms()
local cause, held = { now_ms = now_ms, why = 'stop' }, 0
local _, lost = rare.slots.each(name, slots, function(at, slot, object, tag)
  held = held + 1
  return rare.slots.hold_owned(at, object, tag, cause)
end)
redis_call('DEL', KEYS[1])
rare.registry.register(name, slots, rare.registry.left(token), now_ms)
-- The first look at the name comes in a second. The last argument, `forget_ms`, is infinite, so
-- that the name is not forgotten before that look.
rare.registry.depart(name, now_ms, now_ms, math.huge)
if held > 0 then
  redis_call('RPUSH', P .. K.objects_with_events, '')
end
return { 'detached', held, lost }
