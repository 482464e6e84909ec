-- forget: an operator forgets an idle object, with a record of the action.
--
-- Purpose   Deletes OBJ:last.event.id of the object and all that remains of it, if the object is
--           idle, as the script `forget` does without a record. Records the action only if the last
--           id is deleted. Repeating a call changes nothing.
-- Keys      KEYS[1] objects.held (zset, read)
--           objects.paused (zset), OBJ:event.worker (string), OBJ:events (list),
--           OBJ:events.scheduled (hash): read
--           OBJ:last.event.id (string), OBJ:event.handled (hash): read and deleted
--           OBJ:event.errors (list), OBJ:event.key (string): deleted
--           OBJ:events.held, OBJ:events.held.id: whether they exist
--           operator.actions (stream): written
-- Arguments prefix
--           name of the operator (at most 1,000 bytes)
--           reason for the action (at most 1,000 bytes, may be '')
--           object
-- Replies   {word, detail}: the words and details of the script `forget`
--           {'denied', command}
--           {'wrong_type', key, its type}: a key of all objects has a wrong type
-- Keeps     as the script `forget`
-- Cost      about 20 commands; reads the field names of OBJ:event.handled, and deletes this hash
local object = ARGV[4]

local no = rare.actions.refused(KEYS[1], 'zset', P .. K.objects_paused, 'zset')
if no then
  return no
end
local word, detail = rare.idle.forget(object)
if word == 'forgotten' then
  -- A last id that was written by hand may be any text.
  rare.actions.note('forget', object, ids.parse(detail) and detail or '')
end
return { word, detail }
