-- batches: the batches of the reply. An entry is {number, object, tag, prev, event…}.

-- The first event of a batch takes as much time as four later ones.
local FIRST_COUNTS = 4

-- Adds a batch with its first event to the reply. `is_numbered`: whether it has its ids already.
local function add(slot, entry, is_numbered)
  local e, events_left = call.entries_n + 1, budget.events_left - FIRST_COUNTS
  call.entries[e], call.entry_slots[e], call.entries_n = entry, not is_numbered and slot, e
  slot.is_busy, call.progress = true, true
  budget.events_left, budget.bytes_left = events_left, budget.bytes_left - #entry[5]
  if events_left <= 0 then
    rare.spending.fill()
  end
end

return { add = add }
