-- renew: a worker process keeps its name.
--
-- Purpose   Extends the lease, and never creates one. Returns to the markers every name that a slot has taken but does not own: a pop may
--           answer after its slot was given something else, or its answer may be lost, and its object must not wait behind that.
-- Keys      KEYS[1] event.worker:NAME:lease (string, read and write); event.workers (hash, read and write), event.workers.watched and
--           event.workers.departed (zsets, written); event.worker:W:object (list),
--           objects.with.events (list, read and write), OBJ:event.worker (string, read)
-- Arguments prefix; name; token (UUID); lease (ms); slots (1 to 1024)
-- Replies   {'renewed', names returned} | {'lapsed'} | {'fenced', lease}
-- Keeps     I1, I2
-- Cost      O(slots the name ever had)
local name, token, lease_ms, slots = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

local refused = fence(name, token)
if refused then
  return refused
end
redis.call('LLEN', P .. objects_with_events)
check_registry()
-- Every slot the name ever had, not only those this process runs: a pop of an earlier process may still answer for any of them.
local slots_all = math.max(slots, (registered(name)))
redis.call('PEXPIRE', KEYS[1], lease_ms)
-- The day after which an empty name is forgotten begins with its last sign of life.
local now_ms = now()
register(name, slots_all, token, now_ms)
watch(name, now_ms)
return { 'renewed', each_slot(name, slots_all, function() end) }
