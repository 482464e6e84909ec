-- turns: the order in which slots claim held objects and markers.
-- Uses: held.claim held.owned markers.next

-- Claims the next due held object for the slot. Returns 'claimed', 'dropped', or nil if none is
-- due.
local function claim_held(i)
  local got, object, owner, last = M.held.claim(i)
  if got == 'own' then
    got = M.held.owned(object, C.own(i, object, owner, last, 'held'))
    C.claimed[object] = got == 'claimed' and i or C.claimed[object]
  end
  return got
end

-- Claims the object of the next marker that leads to one. Returns 'claimed', 'dropped', or nil if
-- there is no marker to look at.
local function claim_marker(i)
  local object, last, source = M.markers.next()
  if not object then
    return last
  end
  local got = C.own(i, object, false, last, source)
  -- The marker counts as used only now. Until something else covers the object, its marker must
  -- stay.
  C.markers_used = C.markers_used + 1
  C.claimed[object] = got == 'claimed' and i or C.claimed[object]
  return got == 'claimed' and got or 'dropped'
end

-- Counts an object that could not be claimed. After the last object that the call may pass over,
-- the call claims no more.
local function count_drop(put_aside, from_held)
  if put_aside then
    -- To put an object aside takes as long as to let four go.
    C.drops_left = C.drops_left - 4
  elseif from_held then
    C.drops_left = C.drops_left - 1
  end
  if C.drops_left <= 0 then
    C.claims_left = 0
  end
end

-- Claims one object for the slot. Held objects and markers take turns; if one of them has nothing
-- to claim, the other has the turn. If markers are left that this call may no longer look at, the
-- turn stays with the markers in the next call. Otherwise an object behind many markers of busy
-- objects would wait for a turn of each of these.
local function claim_in_turn(i)
  local misses = 0
  while misses < 2 and C.claims_left > 0 and C.bytes_left > 0 and not C.busy[i] do
    local from_held, put_aside_before, got = C.from == 'held', #C.quarantined, nil
    if from_held then
      got, C.from = (C.is_due or C.held_changed) and claim_held(i) or nil, 'markers'
    else
      got = claim_marker(i)
      if not got and C.markers_left > 0 then
        return
      end
      -- A marker that led nowhere does not use up the turn of the markers.
      C.from = got == 'dropped' and 'markers' or 'held'
    end
    count_drop(#C.quarantined > put_aside_before, got == 'dropped' and from_held)
    misses = got and 0 or misses + 1
  end
end

-- Claims for all free slots.
local function claim(n)
  if C.is_due or C.held_changed then
    for i = 1, n do
      claim_in_turn(i)
    end
    return
  end
  -- Only markers have objects to claim.
  local busy, own, next_marker = C.busy, C.own, M.markers.next
  for i = 1, n do
    while not busy[i] and C.claims_left > 0 and C.bytes_left > 0 do
      local object, last, source = next_marker()
      if not object then
        C.from = (last or C.markers_left > 0) and 'markers' or C.from
        return
      end
      local put_aside_before = #C.quarantined
      local got = own(i, object, false, last, source)
      C.markers_used = C.markers_used + 1
      C.from = got == 'claimed' and 'held' or 'markers'
      if got ~= 'claimed' then
        count_drop(#C.quarantined > put_aside_before, false)
      end
    end
  end
end

return { claim = claim }
