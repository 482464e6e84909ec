-- forget: deletes the last ids of idle objects, and with them all that remains of these objects.
--
-- Purpose   Deletes OBJ:last.event.id of every named object that is idle: it has no events, no
--           owner and no schedules, and is not held. Changes no other object. A marker, or a name
--           in a worker's list, is no reason to keep an object without events.
-- Keys      KEYS[1] objects.held (zset, read)
--           objects.paused (zset, read)
--           OBJ:last.event.id (string), OBJ:event.handled (hash): read and deleted
--           OBJ:event.errors (list), OBJ:event.key (string): deleted
--           OBJ:event.worker (string), OBJ:events (list): read
--           OBJ:events.scheduled (hash, read)
--           OBJ:events.held, OBJ:events.held.id: whether they exist
-- Arguments prefix
--           objects (1 to 250)
-- Replies   {'looked', word, detail, …}, a pair for each object:
--             forgotten LAST  the last id is deleted
--             unknown ''      the object has no last id; a marker may exist
--             queued EVENTS   the number of its events
--             owned W         its owner
--             held ''
--             scheduled N     the number of its schedules
--             reserved KEY    a key with emits that were never pushed
--             wrong KEY       a key of a wrong type
-- Keeps     I1 to I6. The next id of the object comes from next.event.id, so it is above all
--           earlier ids of the object. Its next event has `prev` 0, so no receiver takes it for
--           early
-- Cost      about 14 commands per object
local objects = { unpack(ARGV, 2) }

local reply = { 'looked' }
for _, object in ipairs(objects) do
  local word, detail = rare.idle.forget(object)
  reply[#reply + 1] = word
  reply[#reply + 1] = detail
end
return reply
