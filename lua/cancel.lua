-- cancel: ends an event with a key that a slot has had, and that waits for a retry or an operator.
--
-- Purpose   Plain commands cancel a schedule whose event no slot has taken yet. This script ends an
--           event that a slot has taken and that is held now, without another delivery. The event
--           ends as if an operator had skipped it, but becomes no dead letter. Emits of handlers
--           that have finished are pushed. With the event log on, the event gets a row with the
--           status `cancelled`. The object goes on with its next event. Repeating a call changes
--           nothing.
-- Keys      KEYS[1] objects.held (zset, written)
--           OBJ:event.key (string, read and deleted)
--           OBJ:last.event.id, event.worker:W:event.id (strings), objects.paused (zset),
--           seriatim.meta (hash): read
--           OBJ:event.worker (string): read, and written if it is lost although the event is held
--           OBJ:events.held (list), OBJ:events.held.id (string): read and deleted
--           OBJ:event.handled (hash): read and deleted; OBJ:event.errors (list): deleted
--           objects.with.events (list), event.log (stream): written; the end of the event
--           (string): read and written, if it is awaited
--           OBJ:events of the objects for which handlers of the event emitted (lists): written. Of
--           those for which they scheduled: OBJ:events.scheduled (hashes), events.scheduled and
--           events.scheduled.wake (zsets): read and written
-- Arguments prefix
--           object
--           key
--           id of the event that OBJ:event.key named when the caller read it. If another event has
--           the key by now, that event goes on
-- Replies   {'cancelled', id}
--           {'running', id}: a slot has the event
--           {'absent'}: the event is neither in hand nor held
--           {'denied', command}
--           {'wrong_type', key, its type}
--           A call with any reply but `cancelled` has changed nothing
-- Keeps     I2, I4, I5. An event with a key is alone in its batch, so the whole held batch ends
-- Cost      about 30 commands; 2 per event that handlers emitted, 2 per object of these, and up
--           to 7 per event scheduled
local object, key, expected = ARGV[2], ARGV[3], ARGV[4]

local event, reply = rare.ending.look(object, key, expected)
if not event then
  return reply
end
rare.ending.finish(event)
return { 'cancelled', event.id }
