-- aside: what cannot go on is held until an operator releases it, and stops nothing else.
-- Uses: again.rise_above hold.batch hold.object tag.held_text tag.numbers

-- Returns why an object is put aside because of this key, which is without its prefix. Not by
-- string.format, which cuts a name at a NUL.
local function why_of(wrong)
  return 'quarantine: ' .. wrong .. ' is a ' .. call('TYPE', P .. wrong).ok
end

-- Returns whether the reply is an error for a key's type. Any other error is no matter of one key,
-- and ends the call.
local function is_wrong_type(reply)
  if type(reply) ~= 'table' or not reply.err then
    return false
  end
  return string.find(reply.err, '^WRONGTYPE') ~= nil or error(reply)
end

-- Notes what was put aside in this call: it is not due any more, though the call may have read
-- before that it is.
local function note(object, why)
  C.put_aside[object], C.held_changed = true, true
  C.quarantined[#C.quarantined + 1] = object
  C.quarantined[#C.quarantined + 1] = why
end

-- Reports a name that is dropped because it may be one of another namespace. The reply has few of
-- them, and of each what a name may have.
local function report_foreign(object)
  if #C.quarantined < 128 then
    C.quarantined[#C.quarantined + 1] = string.sub(object, 1, 512)
    C.quarantined[#C.quarantined + 1] = 'foreign: it may be an object of another namespace, so its marker is dropped'
  end
end

-- Returns the key, without its prefix, that did not let the first event of the object into the
-- slot's batch. Raises where it is the batch that has a wrong type: that is the worker's own key,
-- not the object's.
local function wrong_of(i, object, reply)
  is_wrong_type(reply)
  call('LLEN', C.base[i] .. K.worker_event)
  return object .. K.events
end

-- Puts an object aside that the slot has, because its key `wrong` has a wrong type.
local function put(i, object, wrong)
  local why = why_of(wrong)
  M.hold.object(C.base[i], object, 'inf', M.tag.held_text('0', 0, 0, 0, why))
  try('ZREM', P .. K.objects_paused, object)
  note(object, why)
end

-- Puts aside an object of which an earlier call has held the batch, because its owner's key has a
-- wrong type: its batch and the numbers of that stay what they are.
local function put_held(i, object)
  local why = why_of(object .. K.event_worker)
  call('ZADD', P .. K.objects_held, 'inf', object)
  try('ZREM', P .. K.objects_paused, object)
  call('SET', P .. object .. K.event_worker, 'held')
  call('LREM', C.base[i] .. K.worker_object, '1', object)
  note(object, why)
end

-- Holds the batch of a slot as it is, because what its result asks for cannot be done.
local function put_batch(i, object, why)
  local first, handouts, attempts, crashes = M.tag.numbers(ARGV[C.arg[i] + 1])
  M.hold.batch(C.base[i], object, 'inf', M.tag.held_text(first, handouts, attempts, crashes, why))
  note(object, why)
end

-- Returns whether the object is among the held or the paused ones. Where that cannot be told of the
-- paused ones, because their key has a wrong type, it is.
local function is_held(object)
  return call('ZSCORE', P .. K.objects_held, object) or try('ZSCORE', P .. K.objects_paused, object)
end

-- Looks closer at an object whose last id is not one below the counter, or one of whose keys tells
-- nothing and yet is there. Returns 'empty' or 'wrong' if it cannot be claimed, else nil.
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
  -- Nobody may pass over what is held.
  if not owner and call('EXISTS', P .. object .. K.event_worker) == 1 and is_held(object) then
    put_held(i, object)
    return 'wrong'
  end
end

return {
  why_of = why_of, is_wrong_type = is_wrong_type, note = note, report_foreign = report_foreign, wrong_of = wrong_of, put = put, put_held = put_held,
  put_batch = put_batch, refused = refused,
}
