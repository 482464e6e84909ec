-- strays: names that a pop has moved to a slot too late.

-- A pop has answered after its slot was given something else: what it moved must not wait behind that.
local function return_strays(slot, slots)
  for _, other in ipairs(slots) do
    slot.left = slot.left or other.number == slot.number and other.left
  end
  for _, object in ipairs(call('LRANGE', slot.list, 0, -1)) do
    if object ~= slot.left and (is_foreign(object) or call('MGET', P .. object .. event_worker)[1] ~= slot.w) then
      hold().stray(hold().at_of(slot), object)
      -- The empty name only wakes: it does not become a marker again.
      markers_left, progress = markers_left + (object == '' and 0 or 1), true
    end
  end
end

return return_strays
