-- results: takes in results other than `done`.

-- The fields after each word. `tag` is the tag of the batch in flight, as the reply gave it, then a line
-- feed and the object, as in Redis. `last` is the id of the last delivered event, '' if `count` is 0;
-- `next` is the tag of the rest, '' if there is no rest. With the log on one more field follows: the age
-- of the batch, ms. `prepare` and `finish` treat words with a whole batch, and `settle` those with a
-- `count`. `commit.lua` and `missing.lua` name the words with a whole batch, too.
local FIELDS = {
  -- The whole batch is delivered.
  done = { 'object', 'tag', 'last' },
  -- The whole batch is delivered, and other objects get a turn.
  yield = { 'object', 'tag', 'last' },
  -- The first `count` events are delivered; the rest stays in hand.
  part = { 'object', 'tag', 'last', 'count', 'next' },
  -- The first `count` events are delivered; the rest is held for `delay_ms`, or until an operator
  -- releases it (`inf`). If `held_id` has more attempts than the batch had, OBJ:event.errors gets
  -- the error.
  hold = { 'object', 'tag', 'last', 'count', 'delay_ms', 'held_id' },
  -- The first `count` events are delivered; the next one, `id`, becomes a dead letter.
  reject = { 'object', 'tag', 'last', 'count', 'next', 'id', 'error', 'attempts' },
  -- As `reject`, but the next event, `id`, is completed with errors: only the event log gets it.
  complete = { 'object', 'tag', 'last', 'count', 'next', 'id', 'error', 'attempts' },
}

-- Reads the word of a slot's result at position `at` of the arguments, if it is none of `free` and
-- `done`. Returns the position after the result, and whether the slot has a result.
local function read(slot, argv, at)
  local word = argv[at]
  if word == 'look' then
    call.looks = call.looks or {}
    call.looks[#call.looks + 1] = slot.number
    return at + 1, false
  elseif word == 'handled' then
    call.handled, call.has_results = call.handled or {}, true
    call.handled[slot.number] = true
    return at + 1, false
  end
  local result, fields = {}, FIELDS[word]
  call.has_results = true
  for k, field in ipairs(fields) do
    result[field] = argv[at + k]
  end
  slot.result, slot.object, slot.tag, slot.last = result, result.object, result.tag, result.last
  return at + 1 + #fields, true
end

-- Frees the memory of errors and of results of handlers, which may be large. The slots live on in a
-- library, even those of a worker that makes no further call.
local function forget()
  for i = 1, call.slots_n do
    local slot = call.slots[i]
    slot.result, slot.handled = false, false
  end
end

-- Notes which slots have results that may end an event with handler progress.
local function note_handled()
  for i = 1, call.slots_n do
    local slot = call.slots[i]
    slot.handled = call.handled[slot.number] or false
  end
end

-- Prepares the commit of a batch that is delivered as a whole: reads handler progress, and writes
-- the log. Returns false if that is impossible; the batch is quarantined then.
local function prepare(slot)
  slot.handled = call.handled and slot.handled
  return (not slot.handled or rare.progress.read(slot, slot.object)) and (not call.logs or rare.log.delivered(slot, slot.object, nil))
end

-- Finishes the commit that `prepare` has prepared: ends the handler progress, and deletes the
-- errors and the key of the first event.
local function finish(slot)
  local object, tag = slot.object, slot.tag
  if slot.handled then
    rare.progress.event(slot, object, nil)
  end
  if rare.tag.has_failed(tag) then
    writes.delete(P .. object .. K.event_errors)
  end
  if rare.tag.is_odd(tag) then
    local id, _, attempts = rare.tag.numbers(tag)
    rare.ends.of_event(object, 'completed', id, '', ids.text(attempts), rare.progress.results_of(slot, id))
    writes.delete(P .. object .. K.event_key)
  end
end

-- Writes the event that follows the first `count` events of the batch to the dead letters; if it is
-- completed with errors, only to the event log. Returns the error if the write fails, else nil.
local function bury(slot, result, before)
  local object = result.object
  local event = redis_call('LINDEX', slot.batch_key, -1 - tonumber(result.count))
  local fields = { 'id', result.id, 'prev', before, 'object', object, 'event', event, 'error', result.error, 'attempts', result.attempts }
  local status, kept = 'dead', nil
  if slot.word == 'complete' then
    status = 'completed_with_errors'
    kept = not call.logs and rare.log.keep_without_log(status, fields)
  else
    kept = redis_try('XADD', P .. K.events_dead, '*', unpack(fields))
  end
  local failed = type(kept) == 'table' and kept.err or nil
  if call.logs and not failed then
    rare.log.row(slot, status, object, result.id, before, event, result.error, result.attempts)
  end
  return failed
end

-- Holds the rest of the batch for `delay_ms`, or until an operator releases it ('inf'). `why`: the
-- error of the first event of the rest (nil: the error in held_id).
local function hold_rest(slot, result, count, delay_ms, held_id, why)
  local due = delay_ms == 'inf' and delay_ms or rare.time.now_ms() + tonumber(delay_ms)
  local joined = rare.hold.batch(rare.worker.at(slot.owner), result.object, due, held_id)
  call.held_changed = true
  if joined then
    return rare.quarantine.note(result.object, joined)
  end
  rare.errors.keep(result.object, result.tag, count, held_id, why)
end

-- Writes the end of the first event of the batch, if its producer awaits it.
local function end_first(slot, result)
  local id, _, attempts = rare.tag.numbers(result.tag)
  local results = rare.progress.results_of(slot, id)
  if result.count ~= '0' then
    rare.ends.of_event(result.object, 'completed', id, '', ids.text(attempts), results)
  else
    local status = slot.word == 'complete' and 'completed_with_errors' or 'dead'
    rare.ends.of_event(result.object, status, id, result.error, result.attempts, results)
  end
end

-- Applies a result about parts of a batch: some events are delivered, one may become a dead letter
-- or be completed with errors, and the rest is kept or held. Returns whether the slot goes on with
-- its object, because no event of the batch remains.
local function settle_part(slot, result)
  local word, object, last, tag = slot.word, result.object, result.last, result.tag
  local count, batch = tonumber(result.count), slot.batch_key
  -- `before`: the `prev` of the next event. `over`: the id of the last finished event. Handler
  -- progress below the batch is of an event that was lost with a key, so it is over, too.
  local before = last ~= '' and last or rare.counter.last_of(object)
  local over = ids.parse(last) or tonumber((rare.tag.numbers(tag))) - 1
  local delay_ms, held_id, why = result.delay_ms, result.held_id, nil
  if result.id then
    local failed = bury(slot, result, before)
    if failed then
      -- The event is held rather than lost. It keeps its hand-outs, because no tag may come twice.
      local _, handouts, _, crashes = rare.tag.numbers(tag)
      local held_why = 'quarantine: ' .. (word == 'complete' and K.event_log or K.events_dead) .. ': ' .. failed
      held_id = rare.tag.held_text(result.id, handouts, tonumber(result.attempts), crashes, held_why)
      delay_ms, why = 'inf', result.error
    else
      count, over = count + 1, ids.parse(result.id)
    end
  end
  if count > 0 then
    redis_call('LTRIM', batch, 0, -1 - count)
  end
  if last ~= '' then
    redis_call('SET', P .. object .. K.last_event_id, slot.last)
  end
  if slot.handled then
    rare.progress.event(slot, object, over)
  end
  if count > 0 and rare.tag.has_failed(tag) then
    redis_call('DEL', P .. object .. K.event_errors)
  end
  if count > 0 and rare.tag.is_odd(tag) then
    end_first(slot, result)
    redis_call('DEL', P .. object .. K.event_key)
  end
  if delay_ms then
    hold_rest(slot, result, count, delay_ms, held_id, why)
    return false
  elseif result.next == '' then
    redis_call('DEL', slot.tag_key)
    slot.last = last ~= '' and slot.last or before
    return true
  end
  redis_call('SET', slot.tag_key, rare.tag.stored(result.next, object))
  rare.again.give(slot, object, result.next)
  return false
end

-- Applies a result about parts of a batch, if the result is for the batch with this tag. If a
-- result is for another batch, gives the slot its batch again. Returns whether the slot goes on
-- with its object.
local function settle(slot, tag)
  -- The word comes first: a slot still has the result of an earlier call, if that call failed while
  -- it read its arguments.
  local result = slot.word ~= 'free' and slot.word ~= 'done' and slot.result
  slot.handled = call.handled and slot.handled
  if not result or result.tag ~= tag or not result.count then
    rare.again.give_unknown(slot, tag)
    return false
  end
  -- No other object may get the ids of this batch. So the counter must be above them, even if Redis
  -- went back to an earlier counter.
  local length = redis_try('LLEN', slot.batch_key)
  if length == 0 then
    rare.quarantine.put_without_batch(slot, result.object)
    return false
  elseif type(length) == 'number' then
    rare.counter.rise_above(ids.after(tonumber((rare.tag.numbers(tag))), length - 1))
  end
  local ready = not slot.handled or rare.progress.read(slot, result.object)
  local count = tonumber(result.count)
  ready = ready and (not call.logs or count == 0 and not result.id or rare.log.delivered(slot, result.object, count))
  return ready and settle_part(slot, result)
end

return { read = read, forget = forget, note_handled = note_handled, prepare = prepare, finish = finish, settle = settle }
