-- spending: counts rare work against the budget: a full reply, events outside of batches, objects that
-- are passed over.

-- Makes the reply count as full.
local function fill()
  budget.bytes_left = math.min(budget.bytes_left, 0)
end

-- Counts events that the call has taken. After the last event that the call may take, the reply
-- counts as full.
local function events(count)
  budget.events_left = budget.events_left - count
  if budget.events_left <= 0 then
    fill()
  end
end

-- Counts objects that could not be claimed. After the last object that the call may pass over, the
-- call claims no more.
local function drops(count)
  budget.drops_left = budget.drops_left - count
  if budget.drops_left <= 0 then
    budget.claims_left = 0
  end
end

return { fill = fill, events = events, drops = drops }
