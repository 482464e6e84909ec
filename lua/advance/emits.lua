-- emits: what handlers have kept of an event goes with the result that ends it: what they have emitted is pushed, and with the log on their results
-- are written into its row.

-- Reads what is kept, where the slot's result says so. Where what is emitted cannot be pushed the batch is held, until an operator releases it: answers
-- whether it is not. Asked before anything is written: what is emitted must neither be lost nor pushed twice.
local function read_handled(slot, object)
  local kept = try('HGETALL', P .. object .. event_handled)
  -- One of a wrong type tells nothing, and goes with the event.
  kept = is_wrong_type(kept) and {} or kept
  local id, emits = emits_of(kept)
  local wrong, found = object .. event_handled, 'hash that cannot be read'
  if emits then
    wrong, found = wrong_queue(emits)
  end
  if wrong then
    hold().back(slot, object, 'quarantine: ' .. wrong .. ' is a ' .. found)
    return false
  end
  slot.handled = { id = id, emits = emits, results = log_on and results_of(kept) }
  return true
end

-- Ends the event of which something is kept, unless it is behind `over`, the last one that is over; nothing: all of the batch is.
local function end_handled(slot, object, over)
  local handled = slot.handled
  if over and handled.id > over then
    return
  elseif #handled.emits == 0 then
    return delete_later(P .. object .. event_handled)
  end
  -- At once: what is pushed must not be there any more, whatever happens further on.
  call('DEL', P .. object .. event_handled)
  markers_left = markers_left + push_emits(handled.emits)
  -- Their texts may be large, and other slots have some, too.
  handled.emits = {}
end

return { read = read_handled, finish = end_handled }
