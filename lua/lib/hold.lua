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

-- The four numbers of a tag, `FIRST[ HANDOUTS[ ATTEMPTS[ CRASHES]]]`; the first one stays text, as ids do.
local function numbers(tag)
  local first, rest = string.match(tag, '^(%d+)(.*)$')
  local handouts, attempts, crashes = string.match(rest or '', '^ (%d+) ?(%d*) ?(%d*)$')
  return first, tonumber(handouts) or 0, tonumber(attempts) or 0, tonumber(crashes) or 0
end

-- The tag of these numbers, without trailing zeros.
local function tag_of(first, handouts, attempts, crashes)
  if crashes > 0 then
    return string.format('%s %d %d %d', first, handouts, attempts, crashes)
  elseif attempts > 0 then
    return string.format('%s %d %d', first, handouts, attempts)
  elseif handouts > 0 then
    return string.format('%s %d', first, handouts)
  end
  return first
end

local function held_id_of(first, handouts, attempts, crashes, why)
  -- Not by %s, which cuts a name in it at a NUL.
  return string.format('%s %d %d %d ', first, handouts, attempts, crashes) .. why
end
