-- idle: forgets an object, if it is idle: no events, no owner and no schedules, and not held.

-- Returns whether the key exists.
local function is_there(key)
  return redis_call('EXISTS', key) == 1
end

-- Returns the word and the detail of the reply for an object that is kept; nil if it is idle.
local function kept_by(object)
  local base = P .. object
  for _, part in ipairs({ { K.events, 'list' }, { K.event_worker, 'string' }, { K.last_event_id, 'string' } }) do
    local kind = redis_call('TYPE', base .. part[1]).ok
    if kind ~= part[2] and kind ~= 'none' then
      return 'wrong', object .. part[1]
    end
  end
  local owner = redis_call('GET', base .. K.event_worker)
  if owner and owner ~= 'held' then
    return 'owned', owner
  elseif owner or is_there(base .. K.events_held) or is_there(base .. K.events_held_id) then
    return 'held', ''
  -- If objects.held or objects.paused has a wrong type, this raises at the first object that gets
  -- here, before any deletion.
  elseif redis_call('ZSCORE', P .. K.objects_held, object) or redis_call('ZSCORE', P .. K.objects_paused, object) then
    return 'held', ''
  elseif is_there(base .. K.events) then
    return 'queued', redis_call('LLEN', base .. K.events)
  end
  local schedules = redis_try('HLEN', base .. K.events_scheduled_of)
  if type(schedules) == 'table' then
    return 'wrong', object .. K.events_scheduled_of
  elseif schedules > 0 then
    return 'scheduled', schedules
  end
  -- The step that ends an event also pushes its emits. This object has no event in hand, so emits
  -- that are still stored were left behind, and must not be lost.
  for _, field in ipairs(redis_try('HKEYS', base .. K.event_handled)) do
    if rare.emits.is_emit(field) then
      return 'reserved', object .. K.event_handled
    end
  end
end

-- Forgets the object if it is idle: deletes its last id, and all that remains of it. Returns the
-- word and the detail of the reply: `forgotten` and the last id, `unknown`, or those of `kept_by`.
-- Raises only before the first deletion of the call, if objects.held or objects.paused has a wrong
-- type.
local function forget(object)
  local word, detail = kept_by(object)
  if not word then
    local last = redis_call('GET', P .. object .. K.last_event_id)
    word, detail = last and 'forgotten' or 'unknown', last or ''
    -- Apart from the last id, these keys belong to an event in hand. The object has no event in
    -- hand.
    for _, key in ipairs(OBJECT_REMAINS) do
      redis_call('DEL', P .. object .. key)
    end
  end
  return word, detail
end

return { forget = forget }
