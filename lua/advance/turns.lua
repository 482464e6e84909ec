-- turns: the order in which slots claim held objects and markers.
-- Uses: groups.admits groups.open held.claim held.claim_aside held.owned limits.claimed
-- Uses: markers.next markers.next_chunk shares.makes_groups time.now_ms

-- Ends the claim of a held object: `got`, `object`, `owner`, `last`: the result of M.held.claim.
-- Returns 'claimed', 'dropped', or nil if none is due.
local function end_held(i, got, object, owner, last)
  if got == 'own' then
    got = M.held.owned(object, C.own(i, object, owner, last, 'held'))
    C.claimed[object] = got == 'claimed' and i or C.claimed[object]
  end
  return got
end

-- Claims the next due held object for the slot. Returns 'claimed', 'dropped', or nil if none is
-- due.
local function claim_held(i)
  return end_held(i, M.held.claim(i))
end

-- Claims the object of the next marker that leads to one. Returns 'claimed', 'dropped', or nil if
-- there is no marker to look at.
local function claim_marker(i)
  local object, last, source, owner_key = M.markers.next()
  if not object then
    return last
  end
  local got = C.own(i, object, false, last, source, owner_key)
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

-- Claims the objects of markers for all free slots, if no held object can be due, or if the groups
-- take turns. `f`: the place of the object in its chunk. `used`: the number of markers of the chunk
-- that are used. `got`: the result for the last object.
local function claim_markers(n)
  local busy, own, put_aside, claimed, next_chunk = C.busy, C.own, C.put_aside, C.claimed, M.markers.next_chunk
  local objects, before, last_ids, owner_keys, source, held = {}, nil, nil, nil, nil, {}
  local i, f, used, got = 1, 0, 0, nil
  local limited, admits = C.limited, C.limited and M.groups.admits
  repeat
    while busy[i] do
      i = i + 1
    end
    if i > n or C.claims_left <= 0 or C.bytes_left <= 0 then
      break
    end
    f = f + 1
    local object = objects[f]
    if not object then
      C.markers_used = used
      objects, before, last_ids, owner_keys, source, held = next_chunk()
      f, used = 0, 0
      if not objects and (before or C.markers_left > 0) then
        -- The markers after the last claim led nowhere, or this call may look at no further marker.
        got = 'dropped'
      end
    elseif not put_aside[object] and not claimed[object] then
      -- The marker counts as used only after `own`. Until something else covers the object, its
      -- marker must stay.
      C.markers_used = before[f]
      local aside_before = #C.quarantined
      local admitted = not limited or admits(before[f] + 1, object, held[object])
      if admitted ~= true then
        got = admitted
      elseif held[object] then
        got = end_held(i, M.held.claim_aside(i, object))
        if not got then
          -- The object stays due, because the reply is full.
          break
        end
      else
        got = own(i, object, false, last_ids[f], source, owner_keys[f])
      end
      used = before[f] + 1
      if got == 'claimed' then
        claimed[object] = C.grouped or nil
        if limited then
          M.limits.claimed()
        end
      else
        count_drop(#C.quarantined > aside_before, got == 'moved' or got ~= 'stays' and held[object] ~= nil)
      end
    end
  until not objects
  C.markers_used = objects and used or C.markers_used
  return got
end

-- Returns whether the groups take turns in this call. They do if names were set aside for them, or
-- if a share has a limit. Otherwise objects must have groups. Then groups take turns if more objects
-- wait than the call can claim. The key of `C.shares` is there before the first share is.
local function is_grouped()
  if C.waiting > 0 or C.limited then
    return true
  elseif ARGV[13] == '0' and not (C.shares and M.shares.makes_groups) then
    return false
  end
  return C.markers_left > C.claims_left or C.is_due and call('ZCOUNT', P .. K.objects_held, '-inf', M.time.now_ms()) > C.claims_left
end

-- Claims for all free slots.
local function claim(n)
  if is_grouped() then
    M.groups.open()
    claim_markers(n)
  elseif not C.is_due and not C.held_changed then
    local got = claim_markers(n)
    C.from = not got and C.from or got == 'claimed' and 'held' or 'markers'
  else
    for i = 1, n do
      claim_in_turn(i)
    end
  end
end

return { claim = claim }
