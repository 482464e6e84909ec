-- stray_names: names that a pop has moved into a slot's list, but that are not simply to be
-- claimed.

-- Looks at a name in the list of a free slot. If the slot is to claim the object, returns true, and
-- the values of OBJ:event.worker and OBJ:last.event.id. Else removes the name from the list and
-- returns false.
local function look(slot, object)
  local list = slot.objects_key
  if rare.names.is_foreign(object) then
    redis_call('LREM', list, '1', object)
    rare.quarantine.report_foreign(object)
    return false
  elseif rare.marks.is_mark(object) then
    redis_call('LREM', list, '1', object)
    rare.marks.met(object)
    return false
  end
  local found = redis_call('MGET', P .. object .. K.event_worker, P .. object .. K.last_event_id)
  if not found[1] and (call.has_held or call.held_changed or call.rules_next == '0') and rare.missing.put_back(object) then
    found[1] = 'held'
  end
  if found[1] == slot.owner and not slot.is_busy then
    local is_held, why = rare.lost.hold_again(rare.worker.at(slot.owner), object)
    if is_held then
      call.held_changed = true
      if why then
        rare.quarantine.note(object, why)
      end
      return false
    end
  end
  -- Two pops may have moved the same name, both into this list, or one of them into the list of
  -- another slot. Then the second copy is only removed.
  if object == '' or call.claimed[object] or found[1] and found[1] ~= slot.owner then
    redis_call('LREM', list, '1', object)
    return false
  elseif slot.is_busy or budget.claims_left <= 0 or budget.bytes_left <= 0 or call.limited and not found[1] then
    if found[1] then
      rare.hold.other(rare.worker.at(slot.owner), object, rare.time.now_ms(), nil)
      call.held_changed = true
    else
      rare.hold.give_back(rare.worker.at(slot.owner), object)
      call.markers_left = call.markers_left + 1
    end
    return false
  end
  return true, found
end

-- Claims one object at most from the names in the list of a free slot. A name is there because a
-- pop has moved its marker, or because the reply to the claim of its object was lost. All other
-- names are removed from the list.
local function claim(slot, names)
  call.progress = true
  for k = #names, 1, -1 do
    local object = names[k]
    local is_ours, found = look(slot, object)
    local got = is_ours and claims.claim(slot, object, found[1], found[2], 'list')
    if got == 'claimed' then
      call.claimed[object] = true
    elseif got == 'empty' then
      redis_call('LREM', slot.objects_key, '1', object)
      rare.shares.release(object)
      writes.delete(P .. object .. K.event_worker)
      writes.expire(P .. object .. K.last_event_id)
    end
  end
end

return { claim = claim }
