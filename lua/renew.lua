-- renew: a worker process keeps its name.
--
-- Purpose   Extends the lease, and never creates one. Returns to the markers every name that a slot
--           has taken but does not own: a pop may answer after its slot was given something else,
--           or its answer may be lost, and its object must not wait behind that.
-- Keys      KEYS[1] event.worker:NAME:lease (string, read and write); event.workers (hash, read and
--           write), event.workers.watched and event.workers.departed (zsets, written);
--           event.worker:W:object (list), objects.with.events (list, read and write),
--           OBJ:event.worker (string, read)
-- Arguments prefix; name; token (UUID); lease (ms); slots (1 to 1024)
-- Replies   {'renewed', names returned} | {'lapsed'} | {'fenced', lease}
-- Keeps     I1, I2
-- Cost      O(slots the name ever had)
-- Uses: fence.check slots.check_registry slots.each slots.register slots.registered slots.watch
-- Uses: time.now_ms
local name, token, lease_ms, slots = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

local refused = M.fence.check(name, token)
if refused then
  return refused
end
call('LLEN', P .. K.objects_with_events)
M.slots.check_registry()
-- Every slot the name ever had, not only those this process runs: a pop of an earlier process may
-- still answer for any of them.
local slots_all = math.max(slots, (M.slots.registered(name)))
call('PEXPIRE', KEYS[1], lease_ms)
-- The day after which an empty name is forgotten begins with its last sign of life.
local now_ms = M.time.now_ms()
M.slots.register(name, slots_all, token, now_ms)
M.slots.watch(name, now_ms)
return { 'renewed', M.slots.each(name, slots_all, function() end) }
