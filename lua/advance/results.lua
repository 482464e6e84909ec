-- results: takes in results other than `done`.
-- Uses: again.give again.give_unknown again.last_of again.rise_above aside.put_without_batch
-- Uses: errors.keep finish.event finish.read hold.batch hold.object ids.after ids.parse
-- Uses: log.delivered log.keep_without_log log.row tag.has_failed tag.held_text tag.is_odd
-- Uses: tag.numbers time.now_ms

-- The fields after each word. `tag` is the tag of the batch in flight, as the reply gave it; `last`
-- is the id of the last delivered event, '' if `count` is 0; `next` is the tag of the rest, '' if
-- there is no rest. With the log on one more field follows: the age of the batch, ms.
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

-- Reads the number of a slot and the word of its result, at position `at` of ARGV. `n`: the number
-- of slots read so far. Returns the new number of slots, and the position of the next number.
local function name(at, n, tag_keys, owner_base)
  local number, word = ARGV[at], ARGV[at + 1]
  if word == 'look' then
    C.looks[#C.looks + 1] = number
    return n, at + 2
  elseif word == 'handled' then
    C.handled[number] = true
    return n, at + 2
  end
  n = n + 1
  C.arg[n], tag_keys[n] = at + 2, owner_base .. number .. K.worker_event_id
  return n, at + 2 + #FIELDS[word] + (C.logs and 1 or 0)
end

-- Returns whether a result with this word is of a batch that is delivered as a whole. All other
-- results say how many events are delivered.
local function is_whole(word)
  local fields = FIELDS[word]
  return fields ~= nil and fields[4] ~= 'count'
end

-- Returns the fields of the slot's result by name.
local function read(i)
  local result = {}
  for k, field in ipairs(FIELDS[C.result[i]] or {}) do
    result[field] = ARGV[C.arg[i] + k - 1]
  end
  return result
end

-- Returns the time at which the batch was taken, ms.
local function taken_ms(i)
  return M.time.now_ms() - tonumber(ARGV[C.arg[i] + #FIELDS[C.result[i]]])
end

-- Prepares the commit of a batch that is delivered as a whole: reads handler progress, and writes
-- the log. Returns false if that is impossible; the batch is put aside then.
local function prepare(i)
  local object = ARGV[C.arg[i]]
  return (not C.handled[C.number[i]] or M.finish.read(i, object)) and (not C.logs or M.log.delivered(i, object, nil))
end

-- Finishes the commit that `prepare` has prepared: ends the handler progress, and deletes the
-- errors and the key of the first event.
local function finish(i)
  local object, tag = ARGV[C.arg[i]], ARGV[C.arg[i] + 1]
  if C.handled[C.number[i]] then
    M.finish.event(i, object, nil)
  end
  if M.tag.has_failed(tag) then
    C.to_delete[#C.to_delete + 1] = P .. object .. K.event_errors
  end
  if M.tag.is_odd(tag) then
    C.to_delete[#C.to_delete + 1] = P .. object .. K.event_key
  end
end

-- Holds an object without a batch, due now, so that other objects get a turn, or because only the
-- next call has room for its events.
local function let_go(i, object)
  M.hold.object(C.base[i], object, M.time.now_ms(), nil)
  C.held_changed = true
end

-- Writes the event that follows the first `count` events of the batch to the dead letters; if it is
-- completed with errors, only to the event log. Returns the error if the write fails, else nil.
local function bury(i, result, before)
  local object = result.object
  local event = call('LINDEX', C.base[i] .. K.worker_event, -1 - tonumber(result.count))
  local fields = { 'id', result.id, 'prev', before, 'object', object, 'event', event, 'error', result.error, 'attempts', result.attempts }
  local status, kept = 'dead', nil
  if C.result[i] == 'complete' then
    status = 'completed_with_errors'
    kept = not C.logs and M.log.keep_without_log(status, fields)
  else
    kept = try('XADD', P .. K.events_dead, '*', unpack(fields))
  end
  local failed = type(kept) == 'table' and kept.err or nil
  if C.logs and not failed then
    M.log.row(i, status, object, result.id, before, event, result.error, result.attempts)
  end
  return failed
end

-- Holds the rest of the batch for `delay_ms`, or until an operator releases it ('inf'). `why`: the
-- error of the first event of the rest (nil: the error in held_id).
local function hold_rest(i, result, count, delay_ms, held_id, why)
  local due = delay_ms == 'inf' and delay_ms or M.time.now_ms() + tonumber(delay_ms)
  M.hold.batch(C.base[i], result.object, due, held_id)
  C.held_changed = true
  M.errors.keep(result.object, result.tag, count, held_id, why)
end

-- Applies a result about parts of a batch: some events are delivered, one may become a dead letter
-- or be completed with errors, and the rest is kept or held. Returns whether the slot goes on with
-- its object, because no event of the batch remains.
local function settle_part(i, result)
  local word, object, last, tag = C.result[i], result.object, result.last, result.tag
  local count, batch = tonumber(result.count), C.base[i] .. K.worker_event
  -- `before`: the `prev` of the next event. `over`: the id of the last finished event. Handler progress
  -- below the batch is of an event that was lost with a key, so it is over, too.
  local before = last ~= '' and last or M.again.last_of(object)
  local over = M.ids.parse(last) or tonumber((M.tag.numbers(tag))) - 1
  local delay_ms, held_id, why = result.delay_ms, result.held_id, nil
  if result.id then
    local failed = bury(i, result, before)
    if failed then
      -- The event is held rather than lost. It keeps its hand-outs, because no tag may come twice.
      local _, handouts, _, crashes = M.tag.numbers(tag)
      local held_why = 'quarantine: ' .. (word == 'complete' and K.event_log or K.events_dead) .. ': ' .. failed
      held_id = M.tag.held_text(result.id, handouts, tonumber(result.attempts), crashes, held_why)
      delay_ms, why = 'inf', result.error
    else
      count, over = count + 1, M.ids.parse(result.id)
    end
  end
  if count > 0 then
    call('LTRIM', batch, 0, -1 - count)
  end
  if last ~= '' then
    call('SET', P .. object .. K.last_event_id, last)
  end
  if C.handled[C.number[i]] then
    M.finish.event(i, object, over)
  end
  if count > 0 and M.tag.has_failed(tag) then
    call('DEL', P .. object .. K.event_errors)
  end
  if count > 0 and M.tag.is_odd(tag) then
    call('DEL', P .. object .. K.event_key)
  end
  if delay_ms then
    hold_rest(i, result, count, delay_ms, held_id, why)
    return false
  elseif result.next == '' then
    call('DEL', C.base[i] .. K.worker_event_id)
    C.object[i], C.prev[i] = object, before
    return true
  end
  call('SET', C.base[i] .. K.worker_event_id, result.next)
  M.again.give(i, object, result.next)
  return false
end

-- Applies a result about parts of a batch, if the result is for the batch with this tag. If a result
-- is for another batch, gives the slot its batch again. Returns whether the slot goes on with its
-- object.
local function settle(i, tag)
  local result = read(i)
  if result.tag ~= tag or not result.count then
    M.again.give_unknown(i, tag)
    return false
  end
  C.progress = true
  -- No other object may get the ids of this batch. So the counter must be above them, even if Redis
  -- went back to an earlier counter.
  local length = try('LLEN', C.base[i] .. K.worker_event)
  if length == 0 then
    M.aside.put_without_batch(i, result.object)
    return false
  elseif type(length) == 'number' then
    M.again.rise_above(M.ids.after(tonumber((M.tag.numbers(tag))), length - 1))
  end
  local ready = not C.handled[C.number[i]] or M.finish.read(i, result.object)
  local count = tonumber(result.count)
  ready = ready and (not C.logs or count == 0 and not result.id or M.log.delivered(i, result.object, count))
  return ready and settle_part(i, result)
end

return {
  FIELDS = FIELDS, name = name, is_whole = is_whole, taken_ms = taken_ms, prepare = prepare, finish = finish, let_go = let_go,
  settle = settle,
}
