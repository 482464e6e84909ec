-- popped: names that a pop has moved into a slot's list, but that are not simply to be claimed.
-- Uses: aside.report_foreign hold.give_back hold.object marks.is_mark marks.met missing.is_held
-- Uses: names.is_foreign share.release time.now_ms

local function worker_of(i)
  return C.name .. '.' .. C.number[i]
end

-- Looks at a name in the list of a free slot. If the slot is to claim the object, returns true, and
-- the values of OBJ:event.worker and OBJ:last.event.id. Else removes the name from the list and
-- returns false.
local function look(i, object)
  local list = C.base[i] .. K.worker_object
  if M.names.is_foreign(object) then
    call('LREM', list, '1', object)
    M.aside.report_foreign(object)
    return false
  elseif M.marks.is_mark(object) then
    call('LREM', list, '1', object)
    M.marks.met(object)
    return false
  end
  local found = call('MGET', P .. object .. K.event_worker, P .. object .. K.last_event_id)
  if not found[1] and (C.has_held or C.held_changed) and M.missing.is_held(object) then
    found[1] = 'held'
  end
  -- Two pops may have moved the same name, both into this list, or one of them into the list of
  -- another slot. Then the second copy is only removed.
  if object == '' or C.claimed[object] or found[1] and found[1] ~= worker_of(i) then
    call('LREM', list, '1', object)
    return false
  elseif C.busy[i] or C.claims_left <= 0 or C.bytes_left <= 0 or C.limited and not found[1] then
    if found[1] then
      M.hold.object(C.base[i], object, M.time.now_ms(), nil)
      C.held_changed = true
    else
      M.hold.give_back(C.base[i], object)
      C.markers_left = C.markers_left + 1
    end
    return false
  end
  return true, found
end

-- Returns the free slots whose lists have names, in order. `lists`: the lists of the free slots;
-- `count`: the number of these lists that have names. The search begins with the last list, because
-- a pop is made for the last free slot.
local function slots(n, lists, count)
  local from_last, l = {}, #lists
  for i = n, 1, -1 do
    if count > 0 and not (C.busy and C.busy[i]) and not C.left[i] then
      if call('EXISTS', lists[l]) == 1 then
        from_last[#from_last + 1] = i
        count = count - 1
      end
      l = l - 1
    end
  end
  local found, total = {}, #from_last
  for f, i in ipairs(from_last) do
    found[total + 1 - f] = i
  end
  return found
end

-- Claims one object at most from the names in the list of a free slot. A name is there because a
-- pop has moved its marker, or because the reply to the claim of its object was lost. All other
-- names are removed from the list.
local function claim(i, names)
  C.progress = true
  for k = #names, 1, -1 do
    local object = names[k]
    local is_ours, found = look(i, object)
    local got = is_ours and C.own(i, object, found[1], found[2], 'list')
    if got == 'claimed' then
      C.claimed[object] = i
    elseif got == 'empty' then
      call('LREM', C.base[i] .. K.worker_object, '1', object)
      M.share.release(object)
      C.to_delete[#C.to_delete + 1] = P .. object .. K.event_worker
      C.to_expire[#C.to_expire + 1] = C.forgets and P .. object .. K.last_event_id or nil
    end
  end
end

-- Moves names from the list of a slot back to the markers. A pop may have moved such a name after
-- the slot got another object. The name must not wait until the slot is done with that object.
local function give_back(number)
  local has_left, base = nil, P .. K.WORKER .. C.name .. '.' .. number
  for i, other in ipairs(C.number) do
    has_left = has_left or other == number and C.left[i]
  end
  for _, object in ipairs(call('LRANGE', base .. K.worker_object, '0', '-1')) do
    local is_own = not M.names.is_foreign(object) and call('MGET', P .. object .. K.event_worker)[1] == C.name .. '.' .. number
    if object ~= has_left and not is_own then
      M.hold.give_back(base, object)
      -- The empty name only wakes a worker, so it does not become a marker again.
      C.markers_left, C.progress = C.markers_left + (object == '' and 0 or 1), true
    end
  end
end

return { slots = slots, claim = claim, give_back = give_back }
