-- aside: holds for an operator an object that cannot go on, so that it stops no other object.
-- Uses: again.rise_above hold.batch hold.object tag.held_text tag.numbers

-- Returns the reason for putting an object aside: its key `wrong`, without prefix, has a wrong
-- type or is absent. Joins the texts, because string.format would cut a name at a NUL.
local function why_of(wrong)
  local kind = call('TYPE', P .. wrong).ok
  return 'quarantine: ' .. wrong .. (kind == 'none' and ' is absent' or ' is a ' .. kind)
end

-- Returns whether the reply is the error of a wrong type. Raises any other error, because such an
-- error is not about one key and must end the call.
local function is_wrong_type(reply)
  if type(reply) ~= 'table' or not reply.err then
    return false
  end
  return string.find(reply.err, '^WRONGTYPE') ~= nil or error(reply)
end

-- Notes that this call has put the object aside, for this reason. The object is not due any more,
-- even if the call has read before that it is due.
local function note(object, why)
  C.put_aside[object], C.held_changed = true, true
  C.quarantined[#C.quarantined + 1] = object
  C.quarantined[#C.quarantined + 1] = why
end

-- Reports a dropped name that may belong to another namespace. The reply has a limited number of
-- names and of bytes of each.
local function report_foreign(object)
  if #C.quarantined < 128 then
    C.quarantined[#C.quarantined + 1] = string.sub(object, 1, 512)
    C.quarantined[#C.quarantined + 1] = 'foreign: it may be an object of another namespace, so its marker is dropped'
  end
end

-- Returns the key, without prefix, whose wrong type stopped the move of the first event into the
-- slot's batch. Raises if that key is the slot's batch, because the batch belongs to the worker,
-- not to the object.
local function wrong_of(i, object, reply)
  is_wrong_type(reply)
  call('LLEN', C.base[i] .. K.worker_event)
  return object .. K.events
end

-- Puts aside the object of a slot without a batch; `wrong`: the key of a wrong type, or the absent
-- key, without prefix.
local function put(i, object, wrong)
  local why = why_of(wrong)
  M.hold.object(C.base[i], object, 'inf', M.tag.held_text('0', 0, 0, 0, why))
  try('ZREM', P .. K.objects_paused, object)
  note(object, why)
end

-- Puts aside the object of a slot that has a tag but no batch, because the batch was deleted by hand
-- or evicted.
local function put_without_batch(i, object)
  put(i, object, K.WORKER .. C.name .. '.' .. C.number[i] .. K.worker_event)
  call('DEL', P .. object .. K.event_errors, P .. object .. K.event_key)
end

-- Puts aside an object that an earlier call has held with its batch, because OBJ:event.worker has a
-- wrong type. The held batch and its numbers stay as they are.
local function put_held(i, object)
  local why = why_of(object .. K.event_worker)
  call('ZADD', P .. K.objects_held, 'inf', object)
  try('ZREM', P .. K.objects_paused, object)
  call('SET', P .. object .. K.event_worker, 'held')
  call('LREM', C.base[i] .. K.worker_object, '1', object)
  note(object, why)
end

-- Puts aside the object of a slot with the slot's whole batch, because the call cannot apply the
-- result of the batch.
local function put_batch(i, object, why)
  local first, handouts, attempts, crashes = M.tag.numbers(ARGV[C.arg[i] + 1])
  M.hold.batch(C.base[i], object, 'inf', M.tag.held_text(first, handouts, attempts, crashes, why))
  note(object, why)
end

-- Returns whether the object is in the set of held or of paused objects. If the set of paused
-- objects has a wrong type, the object counts as paused.
local function is_held(object)
  return call('ZSCORE', P .. K.objects_held, object) or try('ZSCORE', P .. K.objects_paused, object)
end

-- Examines an object whose last id is invalid or above the counter, or with a key that MGET returns
-- as nil although the key exists. Returns 'empty' or 'wrong' if the object cannot be claimed, else
-- nil.
local function refused(i, object, owner, last, last_id)
  local queue = call('TYPE', P .. object .. K.events).ok
  if queue == 'none' then
    return 'empty'
  elseif queue ~= 'list' then
    put(i, object, object .. K.events)
    return 'wrong'
  elseif last and not (last_id and M.again.rise_above(last_id)) or not last and call('EXISTS', P .. object .. K.last_event_id) == 1 then
    put(i, object, object .. K.last_event_id)
    return 'wrong'
  end
  -- OBJ:event.worker has a wrong type, but the object is held. A claim would pass over its held
  -- batch, so no slot may claim it.
  if not owner and call('EXISTS', P .. object .. K.event_worker) == 1 and is_held(object) then
    put_held(i, object)
    return 'wrong'
  end
end

return {
  why_of = why_of, is_wrong_type = is_wrong_type, note = note, report_foreign = report_foreign, wrong_of = wrong_of, put = put,
  put_without_batch = put_without_batch, put_held = put_held, put_batch = put_batch, refused = refused,
}
