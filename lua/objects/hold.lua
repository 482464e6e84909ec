-- hold: takes an object from its slot. The only way to hold one: retry, takeover, yield, stop.

-- Takes `object` from a slot whose keys begin with `at`, and holds it until `due` (ms, or 'inf').
-- `held_id`: the value of OBJ:events.held.id; nil if the object has no batch.
local function hold_object(at, object, due, held_id)
  rare.shares.release(object)
  redis_call('ZADD', P .. K.objects_held, due, object)
  if held_id then
    redis_call('SET', P .. object .. K.events_held_id, held_id)
  end
  redis_call('DEL', at .. K.worker_event_id)
  redis_call('SET', P .. object .. K.event_worker, 'held')
  redis_call('LREM', at .. K.worker_object, 1, object)
end

-- Takes `object` from its slot together with the batch of the slot, and holds both. RENAME moves a
-- batch of any size in one step, and cannot fail because of the type of a key.
local function hold_batch(at, object, due, held_id)
  redis_call('RENAME', at .. K.worker_event, P .. object .. K.events_held)
  hold_object(at, object, due, held_id)
end

-- Moves a name from the slot's list back to the markers, because the slot does not own the object.
-- The name goes to the end from which markers are taken next, because it has waited already. LREM
-- removes by value, because after a lost reply the list may have two names.
local function give_back(at, object)
  redis_call('LREM', at .. K.worker_object, 1, object)
  if object ~= '' then
    redis_call('RPUSH', P .. K.objects_with_events, object)
  end
end

return { object = hold_object, batch = hold_batch, give_back = give_back }
