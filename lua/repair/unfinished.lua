-- unfinished: ends what an object has of an event that no slot finishes.

-- The most events that one call moves for an object.
local EVENTS_MAX = 1000

-- Moves the events of a batch without ids back to the front of the queue, the newest first. They
-- get new ids. Returns whether events are left.
local function move_back(object, batch)
  local count = redis_call('LLEN', batch)
  for _ = 1, math.min(count, EVENTS_MAX) do
    redis_call('LMOVE', batch, P .. object .. K.events, 'LEFT', 'RIGHT')
  end
  rare.mend.spend(math.min(count, EVENTS_MAX), 0)
  return count > EVENTS_MAX
end

-- Moves the events of the object's only batch back. Handlers of its first event run again.
local function requeue(object, batch)
  redis_call('DEL', P .. object .. K.event_handled, P .. object .. K.event_errors, P .. object .. K.event_key)
  return move_back(object, batch)
end

-- Pushes the emits of handlers of an event that is over, and deletes their progress. Returns
-- whether the object has no progress any more.
local function end_progress(object)
  local key = P .. object .. K.event_handled
  if redis_call('TYPE', key).ok ~= 'hash' then
    return true
  end
  local kept = redis_call('HGETALL', key)
  local _, emits = rare.emits.parse(kept)
  if not emits then
    rare.mend.leave(object .. K.event_handled .. ' cannot be read: look at it, and delete it')
    return false
  end
  local wrong, kind = rare.emits.wrong_key(emits)
  if wrong then
    rare.mend.leave(wrong .. ' is a ' .. kind .. ': move it away, so that emitted events can be queued')
    return false
  end
  local count, bytes = #emits / 2 + #(emits.later or {}), 0
  for _, text in ipairs(kept) do
    bytes = bytes + #text
  end
  rare.mend.spend(3 * count, bytes)
  rare.mend.step('progress', 'the progress of handlers without an event is deleted, and ' .. count .. ' events that they have emitted are queued', function()
    rare.emits.push(emits)
    redis_call('DEL', key)
  end)
  return true
end

return { move_back = move_back, requeue = requeue, end_progress = end_progress }
