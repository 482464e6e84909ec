-- progress: ends an event with handler progress in OBJ:event.handled.
-- The emits of its handlers are pushed. With the log on, the row of the event has their results.
-- Commands: 1 per slot with `handled`, plus 1 per event emitted, 2 per object, and up to 3 per event
-- scheduled. A question about a right for each of the last two.

-- Reads OBJ:event.handled for a slot whose result may end the event. Returns whether the emits of
-- the event's handlers can be pushed. If they cannot, holds the object with its batch for an
-- operator. Raises if the Redis user may not push them. The call does this before its first write,
-- because emits must neither be lost nor pushed twice.
local function read(slot, object)
  local kept = redis_try('HGETALL', P .. object .. K.event_handled)
  -- A key of a wrong type has no progress, and is deleted with the event.
  kept = rare.quarantine.is_wrong_type(kept) and {} or kept
  local id, emits = rare.emits.parse(kept)
  local wrong, found = object .. K.event_handled, 'hash that cannot be read'
  if emits then
    wrong, found = rare.emits.wrong_key(emits)
  end
  if wrong then
    rare.quarantine.put_batch(slot, object, 'quarantine: ' .. wrong .. ' is a ' .. found)
    return false
  end
  local denied = rare.emits.denied(rare.emits.commands(emits))
  if denied then
    error({ err = 'NOPERM the Redis user may not call ' .. denied .. ' for the emits of a handler' })
  end
  slot.handled = { id = id, emits = emits, results = (call.logs or rare.tag.is_odd(slot.tag)) and rare.emits.results_of(kept) }
  return true
end

-- Returns the results of the handlers of the event with this id; nil if there are none.
local function results_of(slot, id)
  local handled = slot.handled
  return handled and handled.id == ids.parse(id) and handled.results or nil
end

-- Ends the event that has handler progress, unless this event comes after `over`: the id of the
-- last finished event of the batch (nil: the whole batch is finished).
local function event(slot, object, over)
  local handled = slot.handled
  if over and handled.id > over then
    return
  elseif #handled.emits == 0 and not handled.emits.later then
    writes.delete(P .. object .. K.event_handled)
    return
  end
  -- Deletes the hash at once, because emits that are pushed must not remain, even if the call fails
  -- later.
  redis_call('DEL', P .. object .. K.event_handled)
  call.markers_left = call.markers_left + rare.emits.push(handled.emits)
  -- Frees memory: emits may be large, and other slots have some, too.
  handled.emits = {}
end

return { read = read, results_of = results_of, event = event }
