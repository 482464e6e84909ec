-- missing: slots that have lost one of their keys, by hand or because Redis evicted it. Commands: 1
-- per call that names free slots, and 2 per free slot if one of them has lost its tag; 1 per name
-- in the list of such a slot, and up to 14 for its batch. Per result that comes again: 1. Per result
-- of a slot that does not own its object: up to 3

-- Returns the object of the slot's batch, and whether the slot owns it; if not, nobody does. Returns nil
-- if the object is not known, or another slot has it. The value of the tag, `stored`, names the object. If
-- it names none, the object is the last one in the slot's list that the slot owns: later names are pushed
-- before it.
local function object_of(slot, stored)
  local w, names = slot.owner, redis_call('LRANGE', slot.objects_key, '0', '-1')
  local object, owner = rare.lost.named(stored)
  if object and owner == w then
    for _, name in ipairs(names) do
      if name == object then
        return object, true
      end
    end
    redis_call('RPUSH', slot.objects_key, object)
    rare.quarantine.report_lost(K.WORKER .. w .. K.worker_object, 'mended: the list of a slot with a batch was absent')
    return object, true
  elseif object then
    return owner == '' and object or nil, false
  end
  for k = #names, 1, -1 do
    object = names[k]
    if not rare.names.is_foreign(object) and redis_call('MGET', P .. object .. K.event_worker)[1] == w then
      return object, true
    end
  end
end

-- Returns the number of events in the slot's batch; 0 if the key has a wrong type.
local function length_of(slot)
  local length = redis_try('LLEN', slot.batch_key)
  return type(length) == 'number' and length or 0
end

-- Writes the slot's tag again, if it is lost and the caller has a result of the batch in the slot. A
-- text that is no tag counts as a lost tag; one that names no object is as good as one that does.
-- Returns the tag; the stored text, or false, if the result is of another batch. A batch that is
-- committed is never named here: its object has a last id that is not below the ids of the batch, or has
-- left the slot. An event that ends without delivery does not change the last id. So a result that ends
-- one names no batch. `stored`: the tag in Redis.
local function tag_again(slot, stored)
  local object, tag, last = slot.object, slot.tag, slot.last
  if stored then
    local there, named = rare.tag.split(stored)
    if rare.tag.first_of(there) then
      return not named and there == rare.tag.split(tag) and tag or stored
    end
  end
  local length, first = length_of(slot), tonumber((rare.tag.numbers(tag)))
  if length == 0 or slot.word == 'reject' or slot.word == 'complete' or (slot.word == 'done' or slot.word == 'yield') and tonumber(last) - first + 1 ~= length then
    return stored
  end
  local delivered = tonumber(redis_call('MGET', P .. object .. K.last_event_id)[1] or '0')
  if object_of(slot, stored) ~= object or not delivered or delivered >= first then
    return stored
  end
  local key = slot.tag_key
  redis_call('SET', key, tag)
  rare.quarantine.report_lost(string.sub(key, #P + 1), 'mended: the tag was absent')
  return tag
end

-- Looks at the owner of an object whose batch a slot commits, because it is not the slot: the key was
-- lost. If nobody has claimed the object since then, the slot owns it again. The last id of the object
-- never falls. Returns whether the slot owns the object.
local function owns(slot, owner)
  local object, key = slot.object, P .. slot.object .. K.event_worker
  local delivered = redis_call('MGET', P .. object .. K.last_event_id)[1]
  local id = delivered and ids.parse(delivered)
  if id and slot.last ~= '' and id > tonumber(slot.last) then
    slot.last = delivered
  end
  if owner then
    -- The object belongs to another slot, or is held. So this slot cannot let it wait for a turn.
    slot.word = slot.word == 'yield' and 'done' or slot.word
    rare.quarantine.report_lost(object .. K.event_worker, 'lost: the owner of an object in hand was absent, and it was claimed a second time')
    return false
  end
  -- MGET returns nil for a key of a wrong type, too. Such a key goes with the object.
  if redis_call('EXISTS', key) == 0 then
    redis_call('SET', key, slot.owner)
    rare.quarantine.report_lost(object .. K.event_worker, 'mended: the owner of an object in hand was absent')
  end
  return true
end

-- Takes the batch from a slot that does not own the object of the batch. Holds the object with the batch
-- for an operator, if nobody owns it. If `object` is nil, moves the batch to the lost ones, and names that
-- a pop has moved to the slot's list are markers again. `stored`: the value of the tag; false if it is
-- lost. The slot is busy if the batch must stay.
local function put(slot, object, stored)
  local at, what = rare.worker.at(slot.owner), nil
  slot.is_busy = false
  if object then
    rare.quarantine.note(object, rare.lost.hold(at, object, rare.tag.split(stored)))
  else
    rare.strays.give_back(slot.number)
    what = rare.lost.put(at, stored)
    slot.is_busy = string.sub(what, 1, 5) == 'stuck'
    rare.quarantine.report_lost(K.WORKER .. slot.owner, what)
  end
  -- A batch that must stay is no progress: the next call would find the same.
  call.progress = call.progress or not slot.is_busy
end

-- Looks at the free slots that have a batch although they have no tag. If the slot owns an object,
-- holds it with the batch for an operator, because the ids of the events are not known.
local function free_all()
  for i = 1, call.slots_n do
    local slot = call.slots[i]
    if not slot.is_busy and not slot.left and length_of(slot) > 0 then
      local object = object_of(slot, false)
      if object then
        rare.quarantine.note(object, rare.lost.hold(rare.worker.at(slot.owner), object, false))
      else
        put(slot, nil, false)
      end
    end
  end
end

-- Puts an object whose owner key is absent back to the held or paused objects, if it is one of them.
-- Otherwise its later events would overtake its batch. Returns whether it did so.
local function put_back(object)
  local owner, is_due = P .. object .. K.event_worker, redis_call('ZSCORE', P .. K.objects_held, object)
  local is_paused = not is_due and call.rules_next and redis_call('ZSCORE', P .. K.objects_paused, object)
  if not is_due and not is_paused or redis_call('EXISTS', owner) == 1 then
    return false
  end
  redis_call('SET', owner, 'held')
  rare.quarantine.report_lost(object .. K.event_worker, 'mended: the owner of a ' .. (is_due and 'held' or 'paused') .. ' object was absent')
  return true
end

return {
  object_of = object_of, tag_again = tag_again, owns = owns, put = put, free_all = free_all, put_back = put_back,
  length_of = length_of,
}
