-- batches: the batches of the reply. An entry is {number, object, tag, prev, event…}.

-- The first event of a batch takes as much time as four later ones.
local FIRST_COUNTS = 4
local BATCHES_AFTER = call.BATCHES_AFTER

-- Adds a batch with its first event to the reply. `is_numbered`: whether it has its ids already.
local function add(slot, entry, is_numbered)
  local this, left = call, budget
  local e, events_left = call.entries_n + 1, budget.events_left - FIRST_COUNTS
  this.reply[BATCHES_AFTER + e] = entry
  this.entry_slots[e] = not is_numbered and slot
  this.entries_n, this.progress, slot.is_busy = e, true, true
  left.events_left = events_left
  left.bytes_left = left.bytes_left - #entry[5]
  if events_left <= 0 then
    rare.spending.fill()
  end
end

return { add = add }
