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
--           OBJ:event.worker, OBJ:last.event.id, event.worker:W:event.id (strings), objects.paused
--           (zset), seriatim.meta (hash): read
--           OBJ:events.held (list), OBJ:events.held.id (string): read and deleted
--           OBJ:event.handled (hash): read and deleted; OBJ:event.errors (list): deleted
--           objects.with.events (list), event.log (stream): written
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
-- Uses: emits.parse emits.push emits.results_of emits.wrong_key ids.parse ids.text
-- Uses: tag.held_numbers tag.held_why tag.numbers
local object, key, expected = ARGV[2], ARGV[3], ARGV[4]
local of_key, batch, held_id = P .. object .. K.event_key, P .. object .. K.events_held, P .. object .. K.events_held_id
local handled, errors = P .. object .. K.event_handled, P .. object .. K.event_errors

local found = call('MGET', of_key, P .. object .. K.event_worker, P .. object .. K.last_event_id, held_id)
local id, taken = string.match(found[1] or '', '^(%d+) (.*)$')
local last = found[3] and M.ids.parse(found[3]) or 0
if taken ~= key or id ~= expected or not M.ids.parse(id) or M.ids.parse(id) <= last then
  return { 'absent' }
elseif found[2] ~= 'held' then
  -- OBJ:event.key may be left from an earlier event. Then the batch in hand has another first id.
  local tag = found[2] and call('MGET', P .. K.WORKER .. found[2] .. K.worker_event_id)[1]
  return tag and (M.tag.numbers(tag)) == id and { 'running', id } or { 'absent' }
end
local first, _, attempts = M.tag.held_numbers(found[4] or '')
if first ~= id then
  return { 'absent' }
end

-- Checks types and rights before the first write, because Redis does not undo a script that fails
-- halfway.
local types = {
  KEYS[1], 'zset', P .. K.objects_paused, 'zset', P .. K.objects_with_events, 'list', batch, 'list', handled, 'hash', P .. K.meta, 'hash',
  P .. K.event_log, 'stream',
}
for i = 1, #types, 2 do
  local kind = call('TYPE', types[i]).ok
  if kind ~= types[i + 1] and kind ~= 'none' then
    return { 'wrong_type', types[i], kind }
  end
end
local logs = call('HGET', P .. K.meta, 'event.log')
local markers, schedules = P .. K.objects_with_events, P .. K.events_scheduled
local rights = {
  { 'DEL', batch, held_id, handled, errors, of_key }, { 'ZADD', KEYS[1], '0', object }, { 'ZSCORE', P .. K.objects_paused, object },
  { 'RPUSH', markers, '' }, logs and { 'XADD', P .. K.event_log, '*', 'f', 'v' } or nil,
}
local kept = call('HGETALL', handled)
local handled_id, emits = M.emits.parse(kept)
if not emits then
  return { 'wrong_type', handled, 'hash that cannot be read' }
end
local wrong, kind = M.emits.wrong_key(emits)
if wrong then
  return { 'wrong_type', P .. wrong, kind }
end

for i = 1, #emits, 2 do
  rights[#rights + 1] = { 'LPUSH', P .. emits[i] .. K.events, 'v' }
  rights[#rights + 1] = i == 1 and { 'LPUSH', markers, 'v' } or nil
end
for _, later in ipairs(emits.later or {}) do
  rights[#rights + 1] = { 'HSET', P .. later.object .. K.events_scheduled_of, 'f', 'v' }
  rights[#rights + 1] = { 'ZSCORE', schedules, 'm' }
  rights[#rights + 1] = { 'ZADD', schedules, '0', 'm' }
  rights[#rights + 1] = { 'ZADD', P .. K.events_scheduled_wake, '0', 'm' }
end
for _, right in ipairs(rights) do
  if not redis.acl_check_cmd(unpack(right)) then
    return { 'denied', right[1] }
  end
end

if logs then
  local event, results = call('LINDEX', batch, '-1') or '', handled_id == M.ids.parse(id) and M.emits.results_of(kept)
  local why = 'cancelled: ' .. M.tag.held_why(found[4])
  local fields = { 'id', id, 'prev', found[3] or '0', 'object', object, 'event', event, 'error', why, 'attempts', M.ids.text(attempts) }
  if results then
    fields[#fields + 1], fields[#fields + 2] = 'results', results
  end
  -- Workers trim the log.
  call('XADD', P .. K.event_log, '*', 'status', 'cancelled', unpack(fields))
end
call('DEL', batch, held_id, handled, errors, of_key)
M.emits.push(emits)
if not call('ZSCORE', P .. K.objects_paused, object) then
  call('ZADD', KEYS[1], '0', object)
  call('RPUSH', P .. K.objects_with_events, '')
end
return { 'cancelled', id }
