-- ending: ends an event with a key that a slot has had, and that is held now, without a delivery.

-- Looks for the event of this key that a slot has taken. `expected`: the id that the event must
-- have; nil: any. If the event is held, checks the types and rights for all that `finish` does,
-- because Redis does not undo a script that fails halfway. Returns the event for `finish`, or nil
-- and a reply: {'running', id}, {'absent'}, {'denied', command} or {'wrong_type', key, its type}.
local function look(object, key, expected)
  local found = redis_call('MGET', P .. object .. K.event_key, P .. object .. K.event_worker, P .. object .. K.last_event_id, P .. object .. K.events_held_id)
  local id, taken = string.match(found[1] or '', '^(%d+) (.*)$')
  local last = found[3] and ids.parse(found[3]) or 0
  if taken ~= key or expected and id ~= expected or not ids.parse(id) or ids.parse(id) <= last then
    return nil, { 'absent' }
  end
  -- Only a held object has events.held.id. So if the key of the owner is lost, the object is held.
  local first, _, attempts = rare.tag.held_numbers(found[4] or '')
  local is_lost = not found[2] and first == id
  if found[2] ~= 'held' and not is_lost then
    -- OBJ:event.key may be left from an earlier event. Then the batch in hand has another first id.
    local tag = found[2] and redis_call('MGET', P .. K.WORKER .. found[2] .. K.worker_event_id)[1]
    return nil, tag and (rare.tag.numbers(tag)) == id and { 'running', id } or { 'absent' }
  end
  if first ~= id then
    return nil, { 'absent' }
  end

  local held, markers = P .. K.objects_held, P .. K.objects_with_events
  local batch, handled = P .. object .. K.events_held, P .. object .. K.event_handled
  local keys = { batch, P .. object .. K.events_held_id, handled, P .. object .. K.event_errors, P .. object .. K.event_key }
  local types = {
    held, 'zset', P .. K.objects_paused, 'zset', markers, 'list', batch, 'list', handled, 'hash', P .. K.meta, 'hash', P .. K.event_log, 'stream',
  }
  for i = 1, #types, 2 do
    local kind = redis_call('TYPE', types[i]).ok
    if kind ~= types[i + 1] and kind ~= 'none' then
      return nil, { 'wrong_type', types[i], kind }
    end
  end
  local logs = redis_call('HGET', P .. K.meta, 'event.log')
  local rights = {
    { 'DEL', unpack(keys) }, { 'ZADD', held, '0', object }, { 'ZSCORE', P .. K.objects_paused, object },
    { 'RPUSH', markers, '' }, logs and { 'XADD', P .. K.event_log, '*', 'f', 'v' } or nil,
  }
  if is_lost then
    rights[#rights + 1] = { 'SET', P .. object .. K.event_worker, 'held' }
  end
  local kept = redis_call('HGETALL', handled)
  local handled_id, emits = rare.emits.parse(kept)
  if not emits then
    return nil, { 'wrong_type', handled, 'hash that cannot be read' }
  end
  local wrong, kind = rare.emits.wrong_key(emits)
  if wrong then
    return nil, { 'wrong_type', P .. wrong, kind }
  end

  local denied = rare.emits.denied(rights) or rare.emits.denied(rare.emits.commands(emits))
  if denied then
    return nil, { 'denied', denied }
  end

  local event, results = redis_call('LINDEX', batch, '-1') or '', handled_id == ids.parse(id) and rare.emits.results_of(kept)
  local why = 'cancelled: ' .. rare.tag.held_why(found[4])
  local row = { 'id', id, 'prev', found[3] or '0', 'object', object, 'event', event, 'error', why, 'attempts', ids.text(attempts) }
  if results then
    row[#row + 1], row[#row + 2] = 'results', results
  end
  local over = { id = id, object = object, key = key, keys = keys, emits = emits, row = logs and row, is_lost = is_lost }
  over.why, over.attempts, over.results = why, ids.text(attempts), results
  return over
end

-- Ends the event that `look` has returned: deletes the held batch, pushes the emits of its
-- handlers, writes a row with the event log on, writes the end if it is awaited, and lets the object
-- go on. If the key of the owner is lost, the object is held again.
local function finish(event)
  if event.row then
    -- Workers trim the log.
    redis_call('XADD', P .. K.event_log, '*', 'status', 'cancelled', unpack(event.row))
  end
  rare.ends.write(event.object, event.key, 'cancelled', event.id, event.why, event.attempts, event.results)
  redis_call('DEL', unpack(event.keys))
  if event.is_lost then
    redis_call('SET', P .. event.object .. K.event_worker, 'held')
  end
  rare.emits.push(event.emits)
  if not redis_call('ZSCORE', P .. K.objects_paused, event.object) then
    redis_call('ZADD', P .. K.objects_held, '0', event.object)
    redis_call('RPUSH', P .. K.objects_with_events, '')
  end
end

return { look = look, finish = finish }
