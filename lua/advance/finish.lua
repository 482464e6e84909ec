-- finish: the end of an event of which handlers have kept something.
-- What they have emitted is pushed, and with the log on their results are written into its row.
-- Uses: aside.is_wrong_type aside.put_batch emits.parse emits.push emits.results_of
-- Uses: emits.wrong_queue

-- Reads what is kept, where the slot's result says so. If what is emitted cannot be pushed the
-- batch is put aside; returns whether it is not. Asked before anything is written: what is emitted
-- must neither be lost nor pushed twice.
local function read(i, object)
  local kept = try('HGETALL', P .. object .. K.event_handled)
  -- One of a wrong type tells nothing, and goes with the event.
  kept = M.aside.is_wrong_type(kept) and {} or kept
  local id, emits = M.emits.parse(kept)
  local wrong, found = object .. K.event_handled, 'hash that cannot be read'
  if emits then
    wrong, found = M.emits.wrong_queue(emits)
  end
  if wrong then
    M.aside.put_batch(i, object, 'quarantine: ' .. wrong .. ' is a ' .. found)
    return false
  end
  C.handled[C.number[i]] = { id = id, emits = emits, results = C.logs and M.emits.results_of(kept) }
  return true
end

-- Ends the event of which something is kept, unless it is behind `over`, the last one that is over;
-- nil: all of the batch is.
local function event(i, object, over)
  local handled = C.handled[C.number[i]]
  if over and handled.id > over then
    return
  elseif #handled.emits == 0 then
    C.to_delete[#C.to_delete + 1] = P .. object .. K.event_handled
    return
  end
  -- At once: what is pushed must not be there any more, whatever happens further on.
  call('DEL', P .. object .. K.event_handled)
  C.markers_left = C.markers_left + M.emits.push(handled.emits)
  -- Their texts may be large, and other slots have some, too.
  handled.emits = {}
end

return { read = read, event = event }
