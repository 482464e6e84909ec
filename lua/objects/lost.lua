-- lost: the batch of a slot that has lost one of its keys, by hand or because Redis evicted it.
--
-- event.worker:W:lost  a batch whose object is not known, or that another slot has: the tag of the
--                      batch (`0` if the tag is lost, too) and the object, as in event.worker:W:event.id;
--                      then its events, the oldest at the tail

-- Returns a key without its prefix.
local function bare(key)
  return string.sub(key, #P + 1)
end

-- Returns the object that the value of event.worker:W:event.id names, if it can be one, and the owner of
-- the object: '' if its key is absent, false if it has a wrong type.
local function named(value)
  local _, object = rare.tag.split(value or '')
  if not object or object == '' or rare.names.is_foreign(object) then
    return nil
  end
  local key = P .. object .. K.event_worker
  return object, redis_call('MGET', key)[1] or redis_call('EXISTS', key) == 0 and ''
end

-- Moves the batch of the slot whose keys begin with `at` to event.worker:W:lost. So no other object
-- gets its events, and the slot can go on. `value`: that of event.worker:W:event.id; false if it is lost.
-- Returns what the log has to say. If the slot has lost a batch before, the batch stays in the slot.
local function put(at, value)
  local key, tag, object = at .. K.worker_lost, rare.tag.split(value or '')
  if redis_call('EXISTS', key) == 1 then
    return 'stuck: the slot has a batch of an object that is not known, and ' .. bare(key) .. ' has another one'
  end
  tag = rare.tag.first_of(tag) and tag or '0'
  redis_call('RENAME', at .. K.worker_event, key)
  redis_call('LPUSH', key, object and rare.tag.stored(tag, object) or tag)
  redis_call('DEL', at .. K.worker_event_id)
  if object then
    return 'lost: ' .. bare(key) .. ' has a batch of ' .. object .. ', which the slot does not own'
  end
  return 'lost: the object of the batch in ' .. bare(key) .. ' is not known'
end

-- Holds an object with the batch of its slot for an operator, because the slot's tag or the key of
-- the owner is lost. `tag`: false if it is lost; then the batch has no ids. Nor has it any if later events
-- of the object are delivered. Returns the reason.
local function hold(at, object, tag)
  local lost = tag and object .. K.event_worker or bare(at) .. K.worker_event_id
  local last = tag and ids.parse(redis_call('MGET', P .. object .. K.last_event_id)[1] or '0')
  local first, handouts, attempts, crashes = rare.tag.numbers(last and rare.tag.first_of(tag) > last and tag or '0')
  local why = 'quarantine: ' .. lost .. ' is absent'
  rare.hold.batch(at, object, 'inf', rare.tag.held_text(first, handouts, attempts, crashes, why))
  return why
end

-- Holds an object with the batch that its slot has put away, if there is one: the events of the batch
-- come before those in the queue. The object is in the list of a slot that owns it, and has no batch for
-- it: it has none, or (`has_other`) that of another object. So the batch is that of the object, unless it
-- names another one. The object is due now if the ids of the batch are above the last id of the object.
-- Else it waits for an operator. Returns whether it is held, and the reason if it waits.
local function hold_again(at, object, has_other)
  local key = at .. K.worker_lost
  local length = redis_try('LLEN', key)
  if type(length) ~= 'number' or length < 2 then
    return false
  end
  local value = redis_call('LRANGE', key, '0', '0')[1]
  local tag, name = rare.tag.split(value)
  if name and name ~= object or not has_other and redis_call('EXISTS', at .. K.worker_event) == 1 then
    return false
  end
  local first, last = rare.tag.first_of(tag), ids.parse(redis_call('MGET', P .. object .. K.last_event_id)[1] or '0')
  local is_valid = first and last and first > last
  local why = not is_valid and 'quarantine: ' .. bare(at) .. K.worker_object .. ' is absent' or nil
  local numbers, handouts, attempts, crashes = rare.tag.numbers(is_valid and tag or '0')
  redis_call('LREM', key, 1, value)
  redis_call('RENAME', key, P .. object .. K.events_held)
  -- A slot without a batch may still have a text that is no tag.
  local take = has_other and rare.hold.other or rare.hold.object
  take(at, object, why and 'inf' or rare.time.now_ms(), rare.tag.held_text(numbers, handouts, attempts, crashes, why or 'takeover'))
  return true, why
end

return { named = named, put = put, hold = hold, hold_again = hold_again }
