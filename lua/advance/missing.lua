-- missing: slots that have lost one of their keys, by hand or because Redis evicted it.
-- Commands: 1 per call that names free slots, and 2 per free slot if one of them has lost its tag; 1 per
-- name in the list of such a slot, and up to 8 for its batch. Per result that comes again: 1
-- Uses: aside.note lost.hold lost.put names.is_foreign popped.give_back results.is_whole tag.numbers worker.id

-- The most entries of the reply about lost keys, each with two texts.
local TOLD_MAX = 128

-- Tells the caller about a lost key that this call has put right, or about a lost batch. No object
-- waits for an operator.
local function tell(key, what)
  if #C.quarantined < TOLD_MAX then
    C.quarantined[#C.quarantined + 1] = key
    C.quarantined[#C.quarantined + 1] = what
  end
end

-- Returns the first object in the slot's list that the slot owns; nil if there is none.
local function owned_by(i)
  local w = M.worker.id(C.name, C.number[i])
  for _, object in ipairs(call('LRANGE', C.base[i] .. K.worker_object, '0', '-1')) do
    if not M.names.is_foreign(object) and call('MGET', P .. object .. K.event_worker)[1] == w then
      return object
    end
  end
end

-- Returns the number of events in the slot's batch; 0 if the key has a wrong type.
local function length_of(i)
  local length = try('LLEN', C.base[i] .. K.worker_event)
  return type(length) == 'number' and length or 0
end

-- Writes the slot's tag again, if it is lost and the caller has a result of the batch in the slot.
-- Returns the tag; nil if the result is of another batch. A batch that is committed is never named
-- here: its object has a last id that is not below the ids of the batch, or has left the slot.
local function tag_again(i)
  local object, tag, last = ARGV[C.arg[i]], ARGV[C.arg[i] + 1], ARGV[C.arg[i] + 2]
  local length, first = length_of(i), tonumber((M.tag.numbers(tag)))
  if length == 0 or M.results.is_whole(C.result[i]) and tonumber(last) - first + 1 ~= length then
    return nil
  end
  local delivered = tonumber(call('MGET', P .. object .. K.last_event_id)[1] or '0')
  if owned_by(i) ~= object or not delivered or delivered >= first then
    return nil
  end
  local key = C.base[i] .. K.worker_event_id
  call('SET', key, tag)
  tell(string.sub(key, #P + 1), 'mended: the tag was absent')
  return tag
end

-- Moves the batch of a slot that owns no object out of the slot. Names that a pop has moved to the
-- slot's list are markers again. `tag`: nil if it is lost. The slot is busy if the batch must stay.
local function put(i, tag)
  C.busy[i] = true
  M.popped.give_back(C.number[i])
  local what = M.lost.put(C.base[i], tag)
  C.busy[i] = string.sub(what, 1, 5) == 'stuck'
  C.progress = true
  tell(K.WORKER .. M.worker.id(C.name, C.number[i]), what)
end

-- Finds the free slots that have a batch although they have no tag. If the slot owns an object, it
-- is held with the batch for an operator, because the ids of the events are not known. Returns
-- the lists of the slots that are free then, the last of these slots, and the number of slots
-- without a batch.
local function free(n)
  local found = { lists = {}, without = 0 }
  for i = 1, n do
    if not C.busy[i] and not C.left[i] and length_of(i) > 0 then
      local object = owned_by(i)
      if object then
        M.aside.note(object, M.lost.hold(C.base[i], object, nil))
        C.progress = true
      else
        put(i, nil)
      end
    end
    if not C.busy[i] then
      found.without = found.without + 1
      if not C.left[i] then
        found.lists[#found.lists + 1], found.slot = C.base[i] .. K.worker_object, i
      end
    end
  end
  return found
end

-- Puts an object whose owner key is absent back to the held objects, if it is one of them.
-- Otherwise its later events would overtake its batch. Returns whether it is held.
local function is_held(object)
  local owner = P .. object .. K.event_worker
  if not call('ZSCORE', P .. K.objects_held, object) or call('EXISTS', owner) == 1 then
    return false
  end
  call('SET', owner, 'held')
  tell(object .. K.event_worker, 'mended: the owner of a held object was absent')
  return true
end

return { tell = tell, tag_again = tag_again, put = put, free = free, is_held = is_held, length_of = length_of }
