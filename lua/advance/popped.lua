-- popped: names that a pop has moved into a slot's list, but that are not simply to be claimed.
-- Uses: aside.report_foreign hold.give_back hold.object names.is_foreign time.now_ms

local function worker_of(i)
  return C.name .. '.' .. C.number[i]
end

-- Looks at a name in the list of a free slot: moved there by a pop, or left there by a lost reply.
-- Returns whether the slot is to claim it, with the values of its owner's key and of its last id;
-- if not, the name leaves the list.
local function look(i, object)
  local list = C.base[i] .. K.worker_object
  if M.names.is_foreign(object) then
    call('LREM', list, '1', object)
    M.aside.report_foreign(object)
    return false
  end
  local found = call('MGET', P .. object .. K.event_worker, P .. object .. K.last_event_id)
  -- A name may be there twice, by two pops, or in the list of another slot: the second one says
  -- nothing more.
  if object == '' or C.claimed[object] or found[1] and found[1] ~= worker_of(i) then
    call('LREM', list, '1', object)
    return false
  elseif C.busy[i] or C.claims_left <= 0 or C.bytes_left <= 0 then
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

-- A pop has answered after its slot was given something else: what it moved must not wait behind
-- that.
local function give_back(number)
  local has_left, base = nil, P .. K.WORKER .. C.name .. '.' .. number
  for i, other in ipairs(C.number) do
    has_left = has_left or other == number and C.left[i]
  end
  for _, object in ipairs(call('LRANGE', base .. K.worker_object, 0, -1)) do
    local is_own = not M.names.is_foreign(object) and call('MGET', P .. object .. K.event_worker)[1] == C.name .. '.' .. number
    if object ~= has_left and not is_own then
      M.hold.give_back(base, object)
      -- The empty name only wakes: it does not become a marker again.
      C.markers_left, C.progress = C.markers_left + (object == '' and 0 or 1), true
    end
  end
end

return { look = look, give_back = give_back }
