-- skip: an operator sends the first event of a held object to the dead letters.
--
-- Purpose   The object goes on with the next event, due now. The rest of the batch keeps its ids,
--           and the `prev` of its first event is the last delivered event, not the skipped one.
--           With the event log on, a row says that the event is dead, and has the results of the
--           handlers that had succeeded. Repeating a call that names the event changes nothing.
-- Keys      KEYS[1] objects.held (zset, read and write)
--           objects.paused (zset), seriatim.meta (hash), OBJ:event.worker, OBJ:last.event.id
--           (strings): read
--           events.dead, event.log, operator.actions (streams), objects.with.events (list): written
--           OBJ:events.held (list), OBJ:events.held.id (string): read and write
--           OBJ:event.handled (hash): read and deleted; OBJ:event.errors (list), OBJ:event.key
--           (string): deleted; the end of the event (string): read and written, if it
--           is awaited
--           OBJ:events of the objects for which handlers of the event emitted (lists): written. Of
--           those for which they scheduled: OBJ:events.scheduled (hashes), events.scheduled and
--           events.scheduled.wake (zsets): read and written
-- Arguments prefix
--           name of the operator (at most 1,000 bytes)
--           reason for the action (at most 1,000 bytes, may be '')
--           object
--           id of the event ('': whichever is first)
-- Replies   {'skipped', id, id of the dead letter, events left in the batch}
--           {'not_held', owner or ''}
--           {'paused'}: a rule applies to the object
--           {'no_batch', reason for the hold}: the object is held without a batch
--           {'no_ids', reason for the hold}: the ids of its batch are lost; a repair gives new ones
--           {'other', id}: another event is first
--           {'denied', command}
--           {'wrong_type', key, its type}
-- Keeps     I2, I4, I5. The rest of the batch keeps its hand-outs, so that no tag comes twice
-- Cost      about 15 commands; 1 per event that handlers emitted, 2 per object of these, and up
--           to 3 per event scheduled
local object, expected = ARGV[4], ARGV[5]
local batch = P .. object .. K.events_held

local no = rare.actions.refused(KEYS[1], 'zset', P .. K.objects_paused, 'zset', P .. K.event_log, 'stream', P .. K.meta, 'hash',
  P .. K.events_dead, 'stream', batch, 'list', P .. object .. K.events_held_id, 'string',
  P .. object .. K.last_event_id, 'string', P .. object .. K.event_handled, 'hash')
if no then
  return no
end
local found = redis_call('MGET', P .. object .. K.event_worker, P .. object .. K.events_held_id, P .. object .. K.last_event_id)
if redis_call('ZSCORE', P .. K.objects_paused, object) then
  return { 'paused' }
end
if found[1] ~= 'held' or not redis_call('ZSCORE', KEYS[1], object) then
  return { 'not_held', found[1] or '' }
end
local held_id = found[2] or ''
local first, handouts, attempts, crashes = rare.tag.held_numbers(held_id)
local held_why = rare.tag.held_why(held_id) or ''
local event = redis_call('LINDEX', batch, -1)
if not event then
  return { 'no_batch', held_why }
elseif not first or not ids.parse(first) or first == '0' then
  return { 'no_ids', held_why }
elseif expected ~= '' and expected ~= first then
  return { 'other', first }
end

-- Progress of handlers ends with its event: it is deleted, and the emits are pushed. If the
-- progress is of a later event of the batch, it stays; the handlers of all earlier events have then
-- finished.
local handled = P .. object .. K.event_handled
local kept = redis_call('HGETALL', handled)
local handled_id, emits = rare.emits.parse(kept)
local is_over = handled_id <= ids.parse(first)
if is_over and not emits then
  return { 'wrong_type', handled, 'hash that cannot be read' }
elseif is_over then
  local wrong, kind = rare.emits.wrong_key(emits)
  if wrong then
    return { 'wrong_type', P .. wrong, kind }
  end
end

local last = found[3] and ids.parse(found[3]) and found[3] or '0'
local fields = { 'id', first, 'prev', last, 'object', object, 'event', event, 'error', 'skipped: ' .. held_why, 'attempts', ids.text(attempts) }
local dead_id = redis_call('XADD', P .. K.events_dead, '*', unpack(fields))
local why, results = fields[10], handled_id == ids.parse(first) and rare.emits.results_of(kept)
rare.ends.of_event(object, 'dead', first, why, ids.text(attempts), results)
if redis_call('HGET', P .. K.meta, 'event.log') then
  if results then
    fields[#fields + 1], fields[#fields + 2] = 'results', results
  end
  -- Workers trim the log.
  redis_call('XADD', P .. K.event_log, '*', 'status', 'dead', unpack(fields))
end
redis_call('RPOP', batch)
if is_over then
  redis_call('DEL', handled)
  rare.emits.push(emits)
end
redis_call('DEL', P .. object .. K.event_errors, P .. object .. K.event_key)
local left = redis_call('LLEN', batch)
if left > 0 then
  -- As with any event that leaves a batch, the attempts start again at 0, because they were
  -- attempts of this event. One crash stays, because a later event may have killed the worker.
  local rest = ids.text(ids.after(tonumber(first), 1))
  redis_call('SET', P .. object .. K.events_held_id, rare.tag.held_text(rest, handouts, 0, math.min(crashes, 1), 'skip'))
else
  redis_call('DEL', P .. object .. K.events_held_id)
end
rare.actions.make_due(object)
rare.actions.note('skip', object, first, 'dead_id', dead_id, 'error', held_why)
return { 'skipped', first, dead_id, left }
