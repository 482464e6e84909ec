-- finish: ends an event with handler progress in OBJ:event.handled.
-- The emits of its handlers are pushed. With the log on, their results are written into its row.
-- Uses: aside.is_wrong_type aside.put_batch emits.parse emits.push emits.results_of
-- Uses: emits.wrong_key

-- Reads the handler progress of a slot whose result may end the event. Puts the batch aside if
-- emits cannot be pushed, and returns whether they can. Comes before the first write, because emits
-- must neither be lost nor pushed twice.
local function read(i, object)
  local kept = try('HGETALL', P .. object .. K.event_handled)
  -- A key of a wrong type has no progress, and is deleted with the event.
  kept = M.aside.is_wrong_type(kept) and {} or kept
  local id, emits = M.emits.parse(kept)
  local wrong, found = object .. K.event_handled, 'hash that cannot be read'
  if emits then
    wrong, found = M.emits.wrong_key(emits)
  end
  if wrong then
    M.aside.put_batch(i, object, 'quarantine: ' .. wrong .. ' is a ' .. found)
    return false
  end
  C.handled[C.number[i]] = { id = id, emits = emits, results = C.logs and M.emits.results_of(kept) }
  return true
end

-- Ends the event with handler progress, unless it comes after `over`, the id of the last event that
-- is over (nil: the whole batch is).
local function event(i, object, over)
  local handled = C.handled[C.number[i]]
  if over and handled.id > over then
    return
  elseif #handled.emits == 0 and not handled.emits.later then
    C.to_delete[#C.to_delete + 1] = P .. object .. K.event_handled
    return
  end
  -- Deleted at once: pushed emits must not remain, even if the call fails later.
  call('DEL', P .. object .. K.event_handled)
  C.markers_left = C.markers_left + M.emits.push(handled.emits)
  -- Frees memory: emits may be large, and other slots have some, too.
  handled.emits = {}
end

return { read = read, event = event }
