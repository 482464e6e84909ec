-- hold: takes an object from its slot. The only way to hold one: retry, takeover, yield, stop.
-- Commands: 4 or 5, and 2 for a batch. If the object has a held batch already, 1 per event of the batch.

-- Takes `object` from a slot whose keys begin with `at`, and holds it until `due` (ms, or 'inf'). The
-- slot has the batch of another object, which it keeps. `held_id`: the value of OBJ:events.held.id; nil
-- if the object has no batch.
local function hold_other(at, object, due, held_id)
  rare.shares.release(object)
  redis_call('ZADD', P .. K.objects_held, due, object)
  if held_id then
    redis_call('SET', P .. object .. K.events_held_id, held_id)
  end
  redis_call('SET', P .. object .. K.event_worker, 'held')
  redis_call('LREM', at .. K.worker_object, 1, object)
end

-- The same for the object of the slot's batch, or of a slot without a batch.
local function hold_object(at, object, due, held_id)
  redis_call('DEL', at .. K.worker_event_id)
  hold_other(at, object, due, held_id)
end

-- Moves the events of a slot's batch to the held batch of the same object, those with the lower ids
-- first. `held_id`: the numbers of the slot's batch. Returns the reason for which the object has to
-- wait; nil if the key of the held batch is no list.
local function join(at, object, held_id)
  local batch, held = at .. K.worker_event, P .. object .. K.events_held
  if type(redis_try('LLEN', held)) ~= 'number' then
    return nil
  end
  local other, first = rare.tag.held_numbers(redis_call('MGET', P .. object .. K.events_held_id)[1] or ''), rare.tag.held_numbers(held_id)
  local is_later = tonumber(first) > (tonumber(other) or 0)
  for _ = 1, redis_call('LLEN', batch) do
    redis_call('LMOVE', batch, held, is_later and 'RIGHT' or 'LEFT', is_later and 'LEFT' or 'RIGHT')
  end
  return 'quarantine: ' .. object .. K.event_worker .. ' is absent'
end

-- Takes `object` from its slot together with the batch of the slot, and holds both. RENAME moves a
-- batch of any size in one step, and cannot fail because of the type of a key. If the object has a
-- held batch already, its owner key was lost, and two slots have had it. Then it waits for an operator
-- with both batches. Returns the reason in this case, else nil.
local function hold_batch(at, object, due, held_id)
  local why = redis_call('EXISTS', P .. object .. K.events_held) == 1 and join(at, object, held_id) or nil
  if why then
    hold_object(at, object, 'inf', rare.tag.held_text('0', 0, 0, 0, why))
    redis_call('DEL', P .. object .. K.event_errors, P .. object .. K.event_key)
    return why
  end
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

return { object = hold_object, other = hold_other, batch = hold_batch, give_back = give_back }
