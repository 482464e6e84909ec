-- hold: the one way to let go of an object: for a retry, a takeover, a yield, a stop.

-- Takes `object` away from worker `w` (its keys begin with `at`) and holds it until `due` (ms, or
-- 'inf'). `held_id` is the value of events.held.id; nil where the batch is empty and the reason is
-- a yield. Writes the batch by RENAME: whatever its size, one step, and no type can make it fail.
local function hold_object(at, object, due, held_id)
  call('ZADD', P .. K.objects_held, due, object)
  if held_id then
    call('SET', P .. object .. K.events_held_id, held_id)
  end
  call('DEL', at .. K.worker_event_id)
  call('SET', P .. object .. K.event_worker, 'held')
  call('LREM', at .. K.worker_object, 1, object)
end

local function hold_batch(at, object, due, held_id)
  call('RENAME', at .. K.worker_event, P .. object .. K.events_held)
  hold_object(at, object, due, held_id)
end

-- A name a worker has taken but does not own goes back to the markers, at the end that is taken
-- next: it has waited already. Removes by value: a list may hold two names after a lost reply.
local function give_back(at, object)
  call('LREM', at .. K.worker_object, 1, object)
  if object ~= '' then
    call('RPUSH', P .. K.objects_with_events, object)
  end
end

return { object = hold_object, batch = hold_batch, give_back = give_back }
