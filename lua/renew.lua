-- renew: a worker process keeps its name.
--
-- Purpose   Extends the lease, and never creates one. Moves back to the markers every name in a
--           slot's list whose object the slot does not own. Such a name comes from a pop whose
--           reply was lost, or from a pop that ended after its slot got another object. The object
--           of such a name must not wait for the slot. Writes the owner of an object in hand again,
--           if the key is lost. Otherwise another slot could take later events of the object.
-- Keys      KEYS[1] event.worker:NAME:lease (string, read and write)
--           event.workers (hash), event.worker:W:object of every slot (list),
--           objects.with.events (list): read and write
--           event.workers.watched, event.workers.departed (zsets), seriatim.meta (hash): written
--           OBJ:event.worker (string): read and written
--           event.worker:W:event.id (string), event.worker:W:event (list): read
-- Arguments prefix
--           name
--           token (UUID)
--           lease (ms)
--           slots (1 to 1024)
-- Replies   {'renewed', number of names moved back to the markers, {key, what, …}}
--             key, what: a lost key that the call has written again. At most 64
--           {'lapsed'}
--           {'fenced', lease}
-- Keeps     I1, I2
-- Cost      11 commands, one of them with a key per slot that the name ever had; if a slot has an
--           object, one more per slot, and two per object. If the registration is lost, 2 more with
--           1,024 keys each, and if these find something, up to 2,048 with one key
local name, token, lease_ms, slots = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

local refused = rare.fence.check(name, token)
if refused then
  return refused
end
redis_call('LLEN', P .. K.objects_with_events)
rare.registry.check_types()
-- The call looks at all slots that the name ever had. A pop of an earlier process may still move a
-- name into the list of any of these slots.
local slots_all = rare.slots.known(name, slots)
redis_call('PEXPIRE', KEYS[1], lease_ms)
-- A departed name is forgotten some time after its last sign of life. This call is such a sign.
local now_ms = rare.time.now_ms()
rare.registry.register(name, slots_all, token, now_ms)
if rare.registry.watch(name, now_ms) == 1 then
  -- event.workers.watched is lost. A new pass over all names starts soon.
  redis_try('HDEL', P .. K.meta, 'names.indexed')
end
local strays, lost = 0, {}
if rare.slots.any_taken(name, slots_all) then
  strays, lost = rare.slots.each(name, slots_all, function() end, nil, true)
end
return { 'renewed', strays, lost }
