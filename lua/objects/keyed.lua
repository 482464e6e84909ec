-- keyed (passing): takes events of schedules with a key, to which queues have references. The event
-- stays in OBJ:events.scheduled until a slot takes it. It is then the only event of its batch.
-- Commands: 7 per event with a key; at most 342 of these. 4 per reference to a schedule that was
-- replaced or cancelled; at most 256 of these.

-- The number of references that this call may still pass over. A call passes over a reference whose
-- schedule was replaced or cancelled.
local passes_left = 256
-- The time for which an object is held if its schedules cannot be read.
local POSTPONE_MS = 60000

-- Holds the object without a batch. This call does not claim it again.
local function hold(slot, object, delay_ms)
  rare.hold.object(rare.worker.at(slot.owner), object, rare.time.now_ms() + delay_ms, nil)
  call.excluded[object], call.held_changed, call.progress = true, true, true
end

-- Returns the event of a reference. If the reference has no event, returns nil; if a key has a
-- wrong type, returns nil and this key, without prefix.
local function event_of(object, member, time_us, key)
  local hash = object .. K.events_scheduled_of
  local event, score = redis_try('HGET', P .. hash, key), redis_try('ZSCORE', P .. K.events_scheduled, member)
  if rare.quarantine.is_wrong_type(event) then
    return nil, hash
  elseif rare.quarantine.is_wrong_type(score) then
    return nil, K.events_scheduled
  elseif not rare.schedules.counts(score, time_us) then
    return nil
  elseif not event then
    redis_call('ZREM', P .. K.events_scheduled, member)
  end
  return event
end

-- Replaces the reference, which is alone in the slot's batch, by its event. Passes over references
-- whose schedules were replaced or cancelled. Returns the event. Else returns nil and a word:
-- `empty` if the queue has no further event, `wrong` if the object waits for an operator,
-- `postponed` if the object is held without a batch.
local function take(slot, object, text)
  local queue, batch = P .. object .. K.events, slot.batch_key
  repeat
    local time_us, key = rare.schedules.referred(text)
    if not time_us then
      return text
    end
    local member = rare.schedules.member(object, key)
    local done, event, wrong = pcall(event_of, object, member, time_us, key)
    if done and event then
      redis_call('LSET', batch, '0', event)
      redis_call('HDEL', P .. object .. K.events_scheduled_of, key)
      redis_call('ZREM', P .. K.events_scheduled, member)
      slot.key = key
      -- This event takes three times as long as the first event of any other batch, which counts as
      -- four. So it counts as eight more.
      rare.spending.events(8)
      return event
    elseif not done or wrong then
      redis_call('LMOVE', batch, queue, 'RIGHT', 'RIGHT')
      if not done then
        error(event)
      elseif wrong == K.events_scheduled then
        -- events.scheduled belongs to no single object, so this object does not wait for an
        -- operator. It is held for a minute. `promote` reports the wrong type.
        hold(slot, object, POSTPONE_MS)
        return nil, 'postponed'
      end
      rare.quarantine.put(slot, object, wrong)
      return nil, 'wrong'
    end
    redis_call('DEL', batch)
    passes_left = passes_left - 1
    if passes_left <= 0 then
      -- The next call goes on. Until then the reply counts as full.
      hold(slot, object, 0)
      rare.spending.fill()
      return nil, 'postponed'
    end
    text = redis_call('LMOVE', queue, batch, 'RIGHT', 'LEFT')
  until not text
  return nil, 'empty'
end

-- Stores the key of the schedule from which the slot's event came, with the slot's id. Returns the
-- tag of the batch.
local function tag_of(slot, object, id)
  writes.set(P .. object .. K.event_key, id .. ' ' .. slot.key)
  return rare.tag.keyed(id)
end

return { take = take, tag_of = tag_of }
