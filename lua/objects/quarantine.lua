-- quarantine: holds for an operator an object that cannot go on, so that it stops no other object.

-- The reply has no further dropped names and lost keys if it has so many texts.
local TEXTS_MAX = 128

-- The defects of a last id, and of the numbers of a held batch, in the reason of a quarantine.
local NO_ID, NO_ROOM = ' is no id', ' leaves no room for new ids'

-- Returns the reason for the quarantine of an object: its key `wrong`, without prefix, has a wrong
-- type or is absent. `what`: what is wrong with it if it is a string (nil: that it is one). Joins the
-- texts, because string.format would cut a name at a NUL.
local function why_of(wrong, what)
  local kind = redis_call('TYPE', P .. wrong).ok
  if kind ~= 'string' or not what then
    what = kind == 'none' and ' is absent' or ' is a ' .. kind
  end
  return 'quarantine: ' .. wrong .. what
end

-- Returns whether the reply is the error of a wrong type. Raises any other error, because such an
-- error is not about one key and must end the call.
local function is_wrong_type(reply)
  if type(reply) ~= 'table' or not reply.err then
    return false
  end
  return string.find(reply.err, '^WRONGTYPE') ~= nil or error(reply)
end

-- Adds an object or a key, and what has happened to it, to the reply.
local function tell(name, what)
  local list, n = call.quarantined or {}, call.quarantined_n
  list[n + 1], list[n + 2] = name, what
  call.quarantined, call.quarantined_n = list, n + 2
end

-- Notes that this call has quarantined the object, for this reason. The object is not due any more,
-- even if the call has read before that it is due.
local function note(object, why)
  call.excluded[object], call.held_changed = true, true
  tell(object, why)
end

-- Reports a dropped name that may belong to another namespace. The reply has a limited number of
-- names and of bytes of each.
local function report_foreign(object)
  if call.quarantined_n < TEXTS_MAX then
    tell(string.sub(object, 1, 512), 'foreign: it may be an object of another namespace, so its marker is dropped')
  end
end

-- Tells the caller about a lost key that this call has put right, or about a lost batch. No object
-- waits for an operator.
local function report_lost(key, what)
  if call.quarantined_n < TEXTS_MAX then
    tell(key, what)
  end
end

-- Returns the key, without prefix, whose wrong type stopped the move of the first event into the
-- slot's batch. Raises if that key is the slot's batch, because the batch belongs to the worker,
-- not to the object.
local function wrong_of(slot, object, reply)
  is_wrong_type(reply)
  redis_call('LLEN', slot.batch_key)
  return object .. K.events
end

-- Quarantines the object of a slot without a batch; `wrong`: the key of a wrong type, or the absent
-- key, without prefix. `what`: as for `why_of`.
local function put(slot, object, wrong, what)
  local why = why_of(wrong, what)
  rare.hold.object(rare.worker.at(slot.owner), object, 'inf', rare.tag.held_text('0', 0, 0, 0, why))
  redis_try('ZREM', P .. K.objects_paused, object)
  note(object, why)
end

-- Quarantines the object of a slot that has a tag but no batch, because the batch was deleted by
-- hand or evicted.
local function put_without_batch(slot, object)
  put(slot, object, K.WORKER .. slot.owner .. K.worker_event)
  redis_call('DEL', P .. object .. K.event_errors, P .. object .. K.event_key)
end

-- Quarantines an object that an earlier call has held with its batch, because OBJ:event.worker has a
-- wrong type. The held batch and its numbers stay as they are.
local function put_held(slot, object)
  local why = why_of(object .. K.event_worker)
  redis_call('ZADD', P .. K.objects_held, 'inf', object)
  redis_try('ZREM', P .. K.objects_paused, object)
  redis_call('SET', P .. object .. K.event_worker, 'held')
  redis_call('LREM', slot.objects_key, '1', object)
  note(object, why)
end

-- Quarantines the object of a slot with the slot's whole batch, because the call cannot apply the
-- result of the batch.
local function put_batch(slot, object, why)
  local first, handouts, attempts, crashes = rare.tag.numbers(slot.tag)
  local joined = rare.hold.batch(rare.worker.at(slot.owner), object, 'inf', rare.tag.held_text(first, handouts, attempts, crashes, why))
  note(object, joined or why)
end

-- Returns whether the object is in the set of held or of paused objects. If the set of paused
-- objects has a wrong type, the object counts as paused.
local function is_held(object)
  return redis_call('ZSCORE', P .. K.objects_held, object) or redis_try('ZSCORE', P .. K.objects_paused, object)
end

-- Examines an object whose last id is invalid or above the counter, or with a key that MGET returns
-- as nil although the key exists. Returns 'empty' or 'wrong' if the object cannot be claimed, else
-- nil.
local function refused(slot, object, owner, last, last_id)
  local queue = redis_call('TYPE', P .. object .. K.events).ok
  if queue == 'none' then
    return 'empty'
  elseif queue ~= 'list' then
    put(slot, object, object .. K.events)
    return 'wrong'
  elseif last and not (last_id and rare.counter.rise_above(last_id)) or not last and redis_call('EXISTS', P .. object .. K.last_event_id) == 1 then
    put(slot, object, object .. K.last_event_id, last_id and NO_ROOM or NO_ID)
    return 'wrong'
  end
  -- OBJ:event.worker has a wrong type, but the object is held. A claim would pass over its held
  -- batch, so no slot may claim it.
  if not owner and redis_call('EXISTS', P .. object .. K.event_worker) == 1 and is_held(object) then
    put_held(slot, object)
    return 'wrong'
  end
end

return {
  NO_ID = NO_ID, NO_ROOM = NO_ROOM, why_of = why_of, is_wrong_type = is_wrong_type, note = note, report_foreign = report_foreign, report_lost = report_lost, wrong_of = wrong_of, put = put,
  put_without_batch = put_without_batch, put_held = put_held, put_batch = put_batch, refused = refused,
}
