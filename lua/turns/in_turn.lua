-- in_turn: claims held objects that are due, and objects of markers, in turn.

-- Claims the object of the next marker that leads to one. Returns 'claimed', 'dropped', or nil if
-- there is no marker to look at.
local function claim_marker(slot)
  local object, last, owner_key, is_sound = rare.markers.next()
  if not object then
    return last
  end
  local got = claims.claim(slot, object, false, last, 'markers', owner_key, is_sound)
  -- The marker counts as used only now. Until something else covers the object, its marker must
  -- stay.
  call.markers_used = call.markers_used + 1
  if got ~= 'claimed' then
    return 'dropped'
  end
  return got
end

-- Claims one object for the slot. Held objects and markers take turns; if one of them has nothing
-- to claim, the other has the turn. If markers are left that this call may no longer look at, the
-- turn stays with the markers in the next call. Otherwise an object behind many markers of busy
-- objects would wait for a turn of each of these.
local function claim_one(slot)
  local misses = 0
  while misses < 2 and budget.claims_left > 0 and budget.bytes_left > 0 and not slot.is_busy do
    local from_held, quarantined_before, got = call.from == 'held', call.quarantined_n, nil
    if from_held then
      got, call.from = (call.is_due or call.held_changed) and rare.held.claim(slot) or nil, 'markers'
    else
      got = claim_marker(slot)
      if not got and call.markers_left > 0 then
        return
      end
      -- A marker that led nowhere does not use up the turn of the markers.
      call.from = got == 'dropped' and 'markers' or 'held'
    end
    rare.markers.count_drop(quarantined_before, got == 'dropped' and from_held)
    misses = got and 0 or misses + 1
  end
end

-- Claims for all free slots.
local function claim_all()
  rare.markers.begin()
  for i = 1, call.slots_n do
    claim_one(call.slots[i])
  end
end

return { claim_all = claim_all }
