#!lua flags=allow-oom
local WORKER = 'event.worker:'
local events = ':events'
local last_event_id = ':last.event.id'
local event_worker = ':event.worker'
local data = ':data'
local events_held = ':events.held'
local events_held_id = ':events.held.id'
local event_handled = ':event.handled'
local event_errors = ':event.errors'
local events_scheduled_of = ':events.scheduled'
local worker_object = ':object'
local worker_event = ':event'
local worker_event_id = ':event.id'
local worker_lease = ':lease'
local objects_with_events = 'objects.with.events'
local objects_held = 'objects.held'
local objects_paused = 'objects.paused'
local next_event_id = 'next.event.id'
local event_workers = 'event.workers'
local events_dead = 'events.dead'
local events_scheduled = 'events.scheduled'
local event_rules = 'event.rules'
local event_log = 'event.log'
local event_projections = 'event.projections'
local operator_actions = 'operator.actions'
local meta = 'seriatim.meta'
-- prefix: every script's first argument is what all keys begin with.
local P = ARGV[1]
-- fence: every write of a worker process begins here.

local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Answers nil where the lease of `name` holds `token`; else the reply to give before anything is touched:
-- `lapsed` where the lease is gone and nobody took the name since, `fenced` with the present lease otherwise.
local function fence(name, token)
  local lease = redis.call('GET', P .. WORKER .. name .. worker_lease)
  if lease and string.sub(lease, 1, #token) == token then
    return nil
  end
  if not lease then
    local value = redis.call('HGET', P .. event_workers, name)
    if value and string.match(value, '^%d+ (%S+)') == token then
      return { 'lapsed' }
    end
  end
  return { 'fenced', lease or '' }
end
-- tag: the tag of a batch in flight, and the value of events.held.id, which tells the same numbers of a held one.

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
-- slots: what attach, adopt, detach and renew share: a look at everything the slots of one name have.

-- Calls `owned(at, slot, object, tag)` for every object that a slot of `name` owns, and returns every other name its slots have taken
-- to the markers. Answers how many names it returned. `tag` is false where the batch is empty.
local function each_slot(name, slots, owned)
  local strays = 0
  for slot = 0, slots - 1 do
    local w = name .. '.' .. slot
    local at = P .. WORKER .. w
    local taken = redis.call('LRANGE', at .. worker_object, 0, -1)
    local had
    for i = #taken, 1, -1 do
      local object = taken[i]
      if object == had then
        -- Taken twice, by two pops: what covers it once is enough.
        redis.call('LREM', at .. worker_object, 1, object)
      -- MGET answers nil for a key of a wrong type: nobody owns such an object.
      elseif redis.call('MGET', P .. object .. event_worker)[1] == w then
        had = object
        owned(at, slot, object, redis.call('GET', at .. worker_event_id))
      else
        stray(at, object)
        strays = strays + 1
      end
    end
  end
  return strays
end

-- Raises WRONGTYPE, before anything is written, where a key of a slot or a shared key has a wrong type.
local function check_types(name, slots)
  redis.call('LLEN', P .. objects_with_events)
  redis.call('ZCARD', P .. objects_held)
  redis.call('HLEN', P .. event_workers)
  for slot = 0, slots - 1 do
    local at = P .. WORKER .. name .. '.' .. slot
    redis.call('LLEN', at .. worker_object)
    redis.call('LLEN', at .. worker_event)
    redis.call('STRLEN', at .. worker_event_id)
  end
end

-- The registration of a name: slots, last token, last sign of life (ms).
local function registered(name)
  local value = redis.call('HGET', P .. event_workers, name)
  local slots, token, at_ms = string.match(value or '', '^(%d+) (%S+) (%d+)$')
  return tonumber(slots) or 0, token, tonumber(at_ms) or 0
end

local function register(name, slots, token, at_ms)
  redis.call('HSET', P .. event_workers, name, string.format('%d %s %.0f', slots, token, at_ms))
end

-- Holds what a slot owns, due now, and counts one crash more where `died` and a batch is in flight.
-- An event that has killed its worker `crashes_max` times waits for an operator.
local function hold_owned(at, object, tag, now_ms, why, died, crashes_max)
  if not tag then
    return hold(at, object, now_ms, nil)
  end
  local first, handouts, attempts, crashes = numbers(tag)
  local due = now_ms
  if died then
    crashes = crashes + 1
    if crashes >= crashes_max then
      due = 'inf'
      why = string.format('crashes: died %d times with this event in hand', crashes)
    end
  end
  hold_batch(at, object, due, held_id_of(first, handouts, attempts, crashes, why))
end
-- attach: a worker process takes its name.
--
-- Purpose   Writes a new token and keeps every unfinished batch of the name's slots where it is: advance hands it out again, with the same ids
--           and the same prev. Objects of slots that this start does not run are held, due now. A name in use is refused.
-- Keys      KEYS[1] event.worker:NAME:lease (string, read and write); event.workers (hash), objects.with.events (list), objects.held (zset),
--           event.worker:W:* of every slot, OBJ:event.worker, OBJ:events.held, OBJ:events.held.id (read and write)
-- Arguments prefix; name; token (UUID); holder ("host pid start"); lease (ms); slots (1 to 1024); lease to displace ('' = none);
--           the token this process had before ('' = none); crashes before an event is held for an operator
-- Replies   {'attached', batches kept, objects held, names returned} | {'in_use', lease, ms left}
-- Keeps     I1 to I4, I6
-- Cost      O(slots)
local name, token, holder, lease_ms = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local slots, displace, before, crashes_max = tonumber(ARGV[6]), ARGV[7], ARGV[8], tonumber(ARGV[9])

local lease = redis.call('GET', KEYS[1])
local repeated = lease and string.sub(lease, 1, #token) == token
if lease and not repeated and lease ~= displace then
  return { 'in_use', lease, redis.call('PTTL', KEYS[1]) }
end
local slots_before, last_token = registered(name)
local slots_all = math.max(slots, slots_before)
check_types(name, slots_all)

local now_ms = now()
redis.call('SET', KEYS[1], token .. ' ' .. holder, 'PX', lease_ms)
register(name, slots_all, token, now_ms)

-- An unfinished batch tells of a death, unless this process itself had it (its lease lapsed) or this call was made before, and be it
-- that its own lease lapsed since.
local died = not repeated and last_token ~= before and last_token ~= token
local kept, held = 0, 0
local strays = each_slot(name, slots_all, function(at, slot, object, tag)
  local first, handouts, attempts, crashes = numbers(tag or '0')
  if slot >= slots or (tag and died and crashes + 1 >= crashes_max) then
    hold_owned(at, object, tag, now_ms, 'slots', died, crashes_max)
    held = held + 1
  elseif tag then
    if died then
      redis.call('SET', at .. worker_event_id, tag_of(first, handouts, attempts, crashes + 1))
    end
    kept = kept + 1
  end
end)
return { 'attached', kept, held, strays }
