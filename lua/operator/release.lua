-- release: an operator makes a held object due at once.
--
-- Purpose   Whatever the object waits for, its time or an operator, it waits no more; a worker is
--           woken. Its numbers stay what they are. This repairs an object that is held and in no
--           set, too.
-- Keys      KEYS[1] objects.held (zset, read and write); objects.paused (zset, read);
--           operator.actions (stream, written); objects.with.events (list, written);
--           OBJ:event.worker, OBJ:events.held.id (strings, read)
-- Arguments prefix; who; why; object
-- Replies   {'released', why it was held} | {'not_held', owner or ''} | {'paused'}: a rule holds
--           it | {'denied', command} | {'wrong_type', key, its type}
-- Keeps     I2
-- Cost      about 6 commands
-- Uses: actions.make_due actions.note actions.refused tag.held_numbers
local object = ARGV[4]

local no = M.actions.refused(KEYS[1], 'zset', P .. K.objects_paused, 'zset')
if no then
  return no
end
local found = call('MGET', P .. object .. K.event_worker, P .. object .. K.events_held_id)
if call('ZSCORE', P .. K.objects_paused, object) then
  return { 'paused' }
end
-- The set may have been evicted, or deleted. An object that its owner's key calls held would wait
-- for ever.
if not call('ZSCORE', KEYS[1], object) and found[1] ~= 'held' then
  return { 'not_held', found[1] or '' }
end
local id, _, _, _, why_at = M.tag.held_numbers(found[2] or '')
local held_why = id and string.sub(found[2], why_at)
M.actions.make_due(object)
M.actions.note('release', object, id or '', 'error', held_why or '')
return { 'released', held_why or '' }
