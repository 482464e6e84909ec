-- skip: an operator sends the event at the head of a held object to the dead letters.
--
-- Purpose   The object goes on with what follows, due at once: the rest of the batch with the ids
--           it has, and `prev` the last event delivered. Where the event log is on, its row says
--           that the event is dead, and has the results of the handlers that had succeeded.
--           Repeating a call that names the event changes nothing.
-- Keys      KEYS[1] objects.held (zset, read and write); objects.paused (zset, read); events.dead,
--           event.log, operator.actions (streams, written); objects.with.events (list, written);
--           seriatim.meta (hash, read), OBJ:event.worker, OBJ:last.event.id (strings, read),
--           OBJ:events.held, OBJ:events.held.id (read and write), OBJ:event.handled (hash, read and
--           deleted), OBJ:event.errors (deleted); OBJ:events of the objects for which handlers of
--           the event have emitted (lists, written)
-- Arguments prefix; who; why; object; id of the event, as far as the caller knows ('' = whichever
--           it is)
-- Replies   {'skipped', id, id of the dead letter, events left in the batch}
--           | {'not_held', owner or ''} | {'paused'}: a rule holds it
--           | {'no_batch', why it is held}: no event of it has failed or been in hand
--           | {'other', id}: the head is another
--           | {'denied', command} | {'wrong_type', key, its type}
-- Keeps     I2, I4, I5: the rest keeps its hand-outs, so that no tag comes twice
-- Cost      about 15 commands, and 1 for each event that handlers have emitted, 2 for each object
--           of these
-- Uses: actions.make_due actions.note actions.refused emits.parse emits.push emits.results_of
-- Uses: emits.wrong_queue ids.after ids.parse ids.text tag.held_numbers tag.held_text
local object, expected = ARGV[4], ARGV[5]
local batch = P .. object .. K.events_held

local no = M.actions.refused(KEYS[1], 'zset', P .. K.objects_paused, 'zset', P .. K.event_log, 'stream', P .. K.meta, 'hash',
  P .. K.events_dead, 'stream', batch, 'list', P .. object .. K.events_held_id, 'string',
  P .. object .. K.last_event_id, 'string', P .. object .. K.event_handled, 'hash')
if no then
  return no
end
local found = call('MGET', P .. object .. K.event_worker, P .. object .. K.events_held_id, P .. object .. K.last_event_id)
if call('ZSCORE', P .. K.objects_paused, object) then
  return { 'paused' }
end
if found[1] ~= 'held' or not call('ZSCORE', KEYS[1], object) then
  return { 'not_held', found[1] or '' }
end
local first, handouts, attempts, crashes, why_at = M.tag.held_numbers(found[2] or '')
local held_why = first and string.sub(found[2], why_at)
local event = call('LINDEX', batch, -1)
if not first or not M.ids.parse(first) or first == '0' or not event then
  return { 'no_batch', held_why or '' }
elseif expected ~= '' and expected ~= first then
  return { 'other', first }
end

-- What handlers have kept of it goes with it, and what they have emitted is pushed; that of a later
-- event, before which all others are finished, stays.
local handled = P .. object .. K.event_handled
local kept = call('HGETALL', handled)
local handled_id, emits = M.emits.parse(kept)
local is_over = handled_id <= M.ids.parse(first)
if is_over and not emits then
  return { 'wrong_type', handled, 'hash that cannot be read' }
elseif is_over then
  local wrong, kind = M.emits.wrong_queue(emits)
  if wrong then
    return { 'wrong_type', P .. wrong, kind }
  end
end

local last = found[3] and M.ids.parse(found[3]) and found[3] or '0'
local fields = { 'id', first, 'prev', last, 'object', object, 'event', event, 'error', 'skipped: ' .. held_why, 'attempts', M.ids.text(attempts) }
local dead_id = call('XADD', P .. K.events_dead, '*', unpack(fields))
if call('HGET', P .. K.meta, 'event.log') then
  local results = handled_id == M.ids.parse(first) and M.emits.results_of(kept)
  if results then
    fields[#fields + 1], fields[#fields + 2] = 'results', results
  end
  -- The workers trim it.
  call('XADD', P .. K.event_log, '*', 'status', 'dead', unpack(fields))
end
call('RPOP', batch)
if is_over then
  call('DEL', handled)
  M.emits.push(emits)
end
call('DEL', P .. object .. K.event_errors)
local left = call('LLEN', batch)
if left > 0 then
  -- As behind any event that leaves a batch: the attempts were its own, and one crash stays, for
  -- the killer may be further on.
  local rest = M.ids.text(M.ids.after(tonumber(first), 1))
  call('SET', P .. object .. K.events_held_id, M.tag.held_text(rest, handouts, 0, math.min(crashes, 1), 'skip'))
else
  call('DEL', P .. object .. K.events_held_id)
end
M.actions.make_due(object)
M.actions.note('skip', object, first, 'dead_id', dead_id, 'error', held_why)
return { 'skipped', first, dead_id, left }
