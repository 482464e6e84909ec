-- slots: everything the slots of one name have; the registry of names.
-- Uses: hold.batch hold.give_back hold.object names.is_foreign tag.held_text tag.numbers

-- Calls `owned(at, slot, object, tag)` for every object that a slot of `name` owns, and returns
-- every other name its slots have taken to the markers. Answers how many names it returned. `tag`
-- is false where the batch is empty. `most`: stops behind the slot with which so many objects and
-- names were met; nil: never.
local function each_slot(name, slots, owned, most)
  local strays, met = 0, 0
  for slot = 0, slots - 1 do
    if most and met >= most then
      break
    end
    local w = name .. '.' .. slot
    local at = P .. K.WORKER .. w
    local taken = call('LRANGE', at .. K.worker_object, 0, -1)
    met = met + #taken
    local had
    for i = #taken, 1, -1 do
      local object = taken[i]
      if object == had then
        -- Taken twice, by two pops: what covers it once is enough.
        call('LREM', at .. K.worker_object, 1, object)
      -- MGET answers nil for a key of a wrong type: nobody owns such an object.
      -- A foreign name goes back as well: advance drops it, and reports it.
      elseif not M.names.is_foreign(object) and call('MGET', P .. object .. K.event_worker)[1] == w then
        had = object
        owned(at, slot, object, call('GET', at .. K.worker_event_id))
      else
        M.hold.give_back(at, object)
        strays = strays + 1
      end
    end
  end
  return strays
end

-- Raises WRONGTYPE, before anything is written, if a key of the registry of names has a wrong type.
local function check_registry()
  call('HLEN', P .. K.event_workers)
  call('ZCARD', P .. K.event_workers_watched)
  call('ZCARD', P .. K.event_workers_departed)
end

-- Raises WRONGTYPE, before anything is written, where a key of a slot or a shared key has a wrong
-- type.
local function check_types(name, slots)
  call('LLEN', P .. K.objects_with_events)
  call('ZCARD', P .. K.objects_held)
  check_registry()
  for slot = 0, slots - 1 do
    local at = P .. K.WORKER .. name .. '.' .. slot
    call('LLEN', at .. K.worker_object)
    call('LLEN', at .. K.worker_event)
    call('STRLEN', at .. K.worker_event_id)
  end
end

-- The registration of a name: slots, last token, last sign of life (ms).
local function registered(name)
  local value = call('HGET', P .. K.event_workers, name)
  local slots, token, at_ms = string.match(value or '', '^(%d+) (%S+) (%d+)$')
  return tonumber(slots) or 0, token, tonumber(at_ms) or 0
end

local function register(name, slots, token, at_ms)
  call('HSET', P .. K.event_workers, name, string.format('%d %s %.0f', slots, token, at_ms))
end

-- A departed name is looked at so long after its last sign of life, ms; and a last time when it is
-- forgotten.
local LOOKS_MS = { 1000, 10000, 60000, 600000, 3600000 }

-- Makes the name a watched one; `look_ms` is the time of the next look.
local function watch(name, look_ms)
  call('ZREM', P .. K.event_workers_departed, name)
  call('ZADD', P .. K.event_workers_watched, look_ms, name)
end

-- Makes the name a departed one, whose last sign of life was at `at_ms`; it is forgotten
-- `forget_ms` later.
local function depart(name, at_ms, now_ms, forget_ms)
  local next_ms = at_ms + forget_ms + 1
  for _, look_ms in ipairs(LOOKS_MS) do
    if look_ms < forget_ms and at_ms + look_ms > now_ms then
      next_ms = at_ms + look_ms
      break
    end
  end
  call('ZREM', P .. K.event_workers_watched, name)
  call('ZADD', P .. K.event_workers_departed, next_ms, name)
end

local function is_used_up(crashes, crashes_max)
  return crashes_max > 0 and crashes >= crashes_max
end

-- Holds what a slot owns, due now, and counts one crash more where `died` and a batch is in flight.
-- An event that has killed its worker `crashes_max` times waits for an operator; where that is 0,
-- whoever gets it settles it.
local function hold_owned(at, object, tag, now_ms, why, died, crashes_max)
  if not tag then
    return M.hold.object(at, object, now_ms, nil)
  end
  local first, handouts, attempts, crashes = M.tag.numbers(tag)
  local due = now_ms
  if died then
    crashes = crashes + 1
    if is_used_up(crashes, crashes_max) then
      due = 'inf'
      why = string.format('crashes: died %d times with this event in hand', crashes)
    end
  end
  M.hold.batch(at, object, due, M.tag.held_text(first, handouts, attempts, crashes, why))
end

return {
  each = each_slot, check_registry = check_registry, check_types = check_types, registered = registered, register = register,
  watch = watch, depart = depart, is_used_up = is_used_up, hold_owned = hold_owned,
}
