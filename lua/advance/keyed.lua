-- keyed: events of schedules with a key. The queue of the object has a reference to such an event,
-- which stays in OBJ:events.scheduled until a slot takes it. It is a batch of its own.
-- Uses: aside.is_wrong_type aside.put batch.count results.let_go schedule.member schedule.queued
-- Uses: schedule.referred tag.keyed

-- References that this call may still pass over, because their schedules were replaced or cancelled.
local passes_left = 256

-- Returns the event of a reference. Without one returns nil, and a key of a wrong type if there is
-- one.
local function event_of(object, member, due, key)
  local hash = object .. K.events_scheduled_of
  local event, score = try('HGET', P .. hash, key), try('ZSCORE', P .. K.events_scheduled, member)
  if M.aside.is_wrong_type(event) then
    return nil, hash
  elseif M.aside.is_wrong_type(score) then
    return nil, K.events_scheduled
  elseif not score or tonumber(score) ~= tonumber((M.schedule.queued(due, key))) then
    return nil
  elseif not event then
    call('ZREM', P .. K.events_scheduled, member)
  end
  return event
end

-- Replaces the reference, which is alone in the slot's batch, by its event. Passes over references
-- whose schedules were replaced or cancelled. Returns the event; or nil and `empty`, or `wrong` if
-- the object is held.
local function take(i, object, text)
  local queue, batch = P .. object .. K.events, C.base[i] .. K.worker_event
  repeat
    local due, key = M.schedule.referred(text)
    if not due then
      return text
    end
    local member = M.schedule.member(object, key)
    local done, event, wrong = pcall(event_of, object, member, due, key)
    if done and event then
      call('LSET', batch, '0', event)
      call('HDEL', P .. object .. K.events_scheduled_of, key)
      call('ZREM', P .. K.events_scheduled, member)
      C.key[i] = key
      -- It takes three times as long as another first event.
      M.batch.count(8)
      return event
    elseif not done or wrong then
      call('LMOVE', batch, queue, 'RIGHT', 'RIGHT')
      M.aside.put(i, object, wrong or error(event))
      return nil, 'wrong'
    end
    call('DEL', batch)
    passes_left = passes_left - 1
    if passes_left <= 0 then
      -- The next call goes on. Until then the reply counts as full.
      M.results.let_go(i, object)
      C.put_aside[object], C.progress, C.bytes_left = true, true, math.min(C.bytes_left, 0)
      return nil, 'wrong'
    end
    text = call('LMOVE', queue, batch, 'RIGHT', 'LEFT')
  until not text
  return nil, 'empty'
end

-- Writes down which event the slot has, if that is the event of a key. Returns its tag.
local function tag_of(i, object, id)
  local key, s = C.key[i], #C.to_set
  if not key then
    return id
  end
  C.to_set[s + 1], C.to_set[s + 2] = P .. object .. K.event_key, id .. ' ' .. key
  return M.tag.keyed(id)
end

return { take = take, tag_of = tag_of }
