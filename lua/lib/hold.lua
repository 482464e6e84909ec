-- hold: what every script that lets go of an object shares. Holding is the one mechanism for retry, takeover, yield and shutdown.

-- Takes `object` away from worker `w` (its keys begin with `at`) and holds it until `due` (ms, or 'inf').
-- `held_id` is the value of events.held.id; nil where the batch is empty and the reason is a yield.
-- Writes the batch by RENAME: whatever its size, one step, and no type can make it fail.
local function hold(at, object, due, held_id)
  redis.call('ZADD', P .. objects_held, due, object)
  if held_id then
    redis.call('SET', P .. object .. events_held_id, held_id)
  end
  redis.call('DEL', at .. worker_event_id)
  redis.call('SET', P .. object .. event_worker, 'held')
  redis.call('LREM', at .. worker_object, 1, object)
end

local function hold_batch(at, object, due, held_id)
  redis.call('RENAME', at .. worker_event, P .. object .. events_held)
  hold(at, object, due, held_id)
end

-- A name a worker has taken but does not own goes back to the markers, at the end that is taken next: it has waited already.
-- Removes by value: a list may hold two names after a lost reply.
local function stray(at, object)
  redis.call('LREM', at .. worker_object, 1, object)
  if object ~= '' then
    redis.call('RPUSH', P .. objects_with_events, object)
  end
end
