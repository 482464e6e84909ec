-- cancel: an operator cancels the schedule with a key, or ends its event while it is held.
--
-- Purpose   Deletes the schedule of the object with this key, also if its event is queued; the
--           reference in the queue is then void. If a slot has taken an event with this key, and
--           the event is held now, ends this event as the script `cancel` does. Records the action
--           if there was a schedule, or if an event was ended. Repeating a call changes nothing.
-- Keys      KEYS[1] events.scheduled (zset), OBJ:events.scheduled (hash): read and written
--           operator.actions (stream): written; the end of the event (string): read and written,
--           if it is awaited
--           further keys: those of the script `cancel`
-- Arguments prefix
--           name of the operator (at most 1,000 bytes)
--           reason for the action (at most 1,000 bytes, may be '')
--           object
--           key
-- Replies   {'cancelled', id of the event that was ended, or '' if there was only a schedule}
--           {'running', id}: a slot has the event with this key, which goes on. Nothing has changed
--           {'rescheduled', id}: the same, but a later schedule with this key is deleted
--           {'absent'}: there is neither a schedule nor an event with this key
--           {'denied', command}
--           {'wrong_type', key, its type}
-- Keeps     I8, and those of the script `cancel`. Schedules that handlers of the ended event have
--           emitted stay, even under the same key, because the schedule is deleted first
-- Cost      about 45 commands; for the events that handlers emitted as many as the script `cancel`
local object, key = ARGV[4], ARGV[5]
local schedules = P .. object .. K.events_scheduled_of

local no = rare.actions.refused(KEYS[1], 'zset', schedules, 'hash')
if no then
  return no
end
local event, found = rare.ending.look(object, key)
if found and found[1] ~= 'running' and found[1] ~= 'absent' then
  return found
end

local was_scheduled = redis_call('HDEL', schedules, key) + redis_call('ZREM', KEYS[1], rare.schedules.member(object, key)) > 0
local id = event and event.id or ''
if event then
  rare.ending.finish(event)
elseif was_scheduled then
  rare.ends.write(object, key, 'cancelled', '0', 'cancelled: an operator has cancelled it', '0', nil)
end
if event or was_scheduled then
  rare.actions.note('cancel', object, id, 'key', key)
end
if found and found[1] == 'running' then
  return { was_scheduled and 'rescheduled' or 'running', found[2] }
elseif event or was_scheduled then
  return { 'cancelled', id }
end
return { 'absent' }
