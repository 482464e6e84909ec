-- release: an operator makes a held object due now.
--
-- Purpose   Ends the wait for a time or for an operator, and wakes a worker. The numbers of the
--           batch stay as they are. Also repairs an object whose owner is `held`, but which is
--           missing in objects.held and in objects.paused.
-- Keys      KEYS[1] objects.held (zset, read and write)
--           objects.paused (zset), OBJ:event.worker, OBJ:events.held.id (strings), OBJ:events.held
--           (list): read
--           operator.actions (stream), objects.with.events (list): written
-- Arguments prefix
--           name of the operator (at most 1,000 bytes)
--           reason for the action (at most 1,000 bytes, may be '')
--           object
-- Replies   {'released', reason for the hold}
--           {'not_held', owner or ''}
--           {'paused'}: a rule applies to the object
--           {'no_ids', reason for the hold}: the ids of its batch are lost, so that no worker would
--           take it; a repair gives new ones
--           {'denied', command}
--           {'wrong_type', key, its type}
-- Keeps     I2
-- Cost      about 7 commands
local object = ARGV[4]

local no = rare.actions.refused(KEYS[1], 'zset', P .. K.objects_paused, 'zset')
if no then
  return no
end
local found = redis_call('MGET', P .. object .. K.event_worker, P .. object .. K.events_held_id)
if redis_call('ZSCORE', P .. K.objects_paused, object) then
  return { 'paused' }
end
-- objects.held may have been evicted or deleted. An object whose owner is still `held` would then
-- wait for ever, so it is released, too.
if not redis_call('ZSCORE', KEYS[1], object) and found[1] ~= 'held' then
  return { 'not_held', found[1] or '' }
end
local held_id = found[2] or ''
local id, held_why = rare.tag.held_numbers(held_id), rare.tag.held_why(held_id) or ''
local length = redis_try('LLEN', P .. object .. K.events_held)
if type(length) == 'number' and length > 0 and (ids.parse(id or '0') or 0) == 0 then
  return { 'no_ids', held_why }
end
rare.actions.make_due(object)
rare.actions.note('release', object, id or '', 'error', held_why)
return { 'released', held_why }
