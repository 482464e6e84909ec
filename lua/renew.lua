-- renew: a worker process keeps its name.
--
-- Purpose   Extends the lease, and never creates one. Returns to the markers every name that a slot
--           has taken but does not own. Such a name comes from a pop whose reply was lost, or that
--           ended after its slot got another object. Its object must not wait.
-- Keys      KEYS[1] event.worker:NAME:lease (string, read and write)
--           event.workers (hash), event.worker:W:object of every slot (list),
--           objects.with.events (list): read and write
--           event.workers.watched, event.workers.departed (zsets): written
--           OBJ:event.worker (string): read
-- Arguments prefix
--           name
--           token (UUID)
--           lease (ms)
--           slots (1 to 1024)
-- Replies   {'renewed', names returned}
--           {'lapsed'}
--           {'fenced', lease}
-- Keeps     I1, I2
-- Cost      O(most slots that the name ever had)
-- Uses: fence.check registry.check_types registry.find registry.register registry.watch slots.each
-- Uses: time.now_ms
local name, token, lease_ms, slots = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

local refused = M.fence.check(name, token)
if refused then
  return refused
end
call('LLEN', P .. K.objects_with_events)
M.registry.check_types()
-- All slots that the name ever had, because a pop of an earlier process may still end for any of
-- them.
local slots_all = math.max(slots, (M.registry.find(name)))
call('PEXPIRE', KEYS[1], lease_ms)
-- The time after which a departed name is forgotten begins with its last sign of life.
local now_ms = M.time.now_ms()
M.registry.register(name, slots_all, token, now_ms)
M.registry.watch(name, now_ms)
return { 'renewed', M.slots.each(name, slots_all, function() end) }
