-- lost: the batch of a slot that has lost one of its keys, by hand or because Redis evicted it.
--
-- event.worker:W:lost  a batch whose object is not known: the tag of the batch (`0` if the tag is
--                      lost, too), then its events, the oldest at the tail

-- Returns a key without its prefix.
local function bare(key)
  return string.sub(key, #P + 1)
end

-- Moves the batch of the slot whose keys begin with `at` to event.worker:W:lost. So no other object
-- gets its events, and the slot can go on. `tag`: nil if it is lost. Returns what the log has to
-- say. If the slot has lost a batch before, the batch stays in the slot.
local function put(at, tag)
  local key, is_known = at .. K.worker_lost, tag and rare.tag.first_of(tag)
  if redis_call('EXISTS', key) == 1 then
    return 'stuck: the slot has a batch of an object that is not known, and ' .. bare(key) .. ' has another one'
  end
  redis_call('RENAME', at .. K.worker_event, key)
  redis_call('LPUSH', key, is_known and tag or '0')
  redis_call('DEL', at .. K.worker_event_id)
  return 'lost: the object of the batch in ' .. bare(key) .. ' is not known'
end

-- Holds an object with the batch of its slot for an operator, because the slot's tag or the key of
-- the owner is lost. `tag`: nil if it is lost; then the batch has no ids. Returns the reason.
local function hold(at, object, tag)
  local first, handouts, attempts, crashes = rare.tag.numbers(tag or '0')
  local lost = tag and object .. K.event_worker or bare(at) .. K.worker_event_id
  local why = 'quarantine: ' .. lost .. ' is absent'
  rare.hold.batch(at, object, 'inf', rare.tag.held_text(first, handouts, attempts, crashes, why))
  return why
end

-- Holds an object with the batch that its slot has put away, if there is one: the events of the batch
-- come before those in the queue. The object is in the list of a slot that owns it, but has no batch.
-- So the batch is that of the object. The object is due now if the ids of the batch are above the last
-- id of the object. Else it waits for an operator. Returns whether it is held, and the reason if it
-- waits.
local function hold_again(at, object)
  local key = at .. K.worker_lost
  local length = redis_try('LLEN', key)
  if type(length) ~= 'number' or length < 2 or redis_call('EXISTS', at .. K.worker_event) == 1 then
    return false
  end
  local tag = redis_call('LRANGE', key, '0', '0')[1]
  local first, last = rare.tag.first_of(tag), ids.parse(redis_call('MGET', P .. object .. K.last_event_id)[1] or '0')
  local is_valid = first and last and first > last
  local why = not is_valid and 'quarantine: ' .. bare(at) .. K.worker_object .. ' is absent' or nil
  local numbers, handouts, attempts, crashes = rare.tag.numbers(is_valid and tag or '0')
  redis_call('LREM', key, 1, tag)
  redis_call('RENAME', key, P .. object .. K.events_held)
  rare.hold.object(at, object, why and 'inf' or rare.time.now_ms(), rare.tag.held_text(numbers, handouts, attempts, crashes, why or 'takeover'))
  return true, why
end

return { put = put, hold = hold, hold_again = hold_again }
