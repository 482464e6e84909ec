-- strays: names in the list of a slot that are not its object.

-- Moves names from the list of a slot back to the markers. A pop may have moved such a name after
-- the slot got another object. The name must not wait until the slot is done with that object. The name
-- of that object stays, although its owner key is lost: a renewal, or the commit, writes the key again.
local function give_back(number)
  local has_left, worker = false, call.name .. '.' .. number
  local base = P .. K.WORKER .. worker
  for i = 1, call.slots_n do
    has_left = has_left or call.slots[i].number == number and call.slots[i].left
  end
  for _, object in ipairs(redis_call('LRANGE', base .. K.worker_object, '0', '-1')) do
    local values = rare.names.is_foreign(object) and {} or redis_call('MGET', P .. object .. K.event_worker, base .. K.worker_event_id)
    local _, named = rare.tag.split(values[2] or '')
    local is_own = values[1] == worker or not values[1] and named == object and redis_call('EXISTS', base .. K.worker_event) == 1
    if object ~= has_left and not is_own then
      rare.hold.give_back(base, object)
      -- The empty name only wakes a worker, so it does not become a marker again.
      call.markers_left, call.progress = call.markers_left + (object == '' and 0 or 1), true
    end
  end
end

return { give_back = give_back }
