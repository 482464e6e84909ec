-- claims: makes a slot the owner of an object, and takes the object's first event.
local byte, set, add_batch = string.byte, writes.set, batches.add
local EVENTS, OWNER = K.events, K.event_worker

-- Returns whether the object's keys are as usual: the last id is absent or not above the counter,
-- and a key without a value is absent. MGET returns nil also for a key of a wrong type.
local function is_usual(owner_key, object, owner, last, is_sound)
  if last then
    local id = ids.parse(last)
    if not id or id > call.counter then
      return false
    end
  end
  if is_sound or owner and last then
    return true
  end
  local last_key = P .. object .. K.last_event_id
  return redis_call('EXISTS', owner and last_key or owner_key, last and owner_key or last_key) == 0
end

-- Makes the slot the owner of `object` and takes its first event. Returns 'claimed', 'empty',
-- 'paused', 'postponed', or 'wrong'. `owner`, `last`: values of the object's keys. `source`: `list`
-- if the slot's list already has the name; `held`; or `markers`. `owner_key`: nil, or the key of the
-- owner. `is_sound`: whether a missing `owner` or `last` means an absent key, not a key of a wrong
-- type.
local function claim(slot, object, owner, last, source, owner_key, is_sound)
  local this = call
  if this.rules_next and owner ~= 'held' and rare.pauses.pause(slot, object, last, source) then
    return 'paused'
  end
  owner_key = owner_key or P .. object .. OWNER
  local why
  if (last or not is_sound) and not is_usual(owner_key, object, owner, last, is_sound) then
    why = rare.quarantine.refused(slot, object, owner, last, last and ids.parse(last))
    if why then
      return why
    end
  end
  local queue = P .. object .. EVENTS
  local event = redis_try('LMOVE', queue, slot.batch_key, 'RIGHT', 'LEFT')
  if not event then
    return 'empty'
  elseif #event == 0 and type(event) == 'table' then
    -- A key has a wrong type. The length is looked at first, because `type` costs more.
    rare.quarantine.put(slot, object, rare.quarantine.wrong_of(slot, object, event))
    return 'wrong'
  elseif byte(event) == 0 then
    -- The event may be a reference to a schedule.
    event, why = rare.keyed.take(slot, object, event)
    if not event then
      return why
    end
  end
  local entry = { slot.number, object, '', last or '0', event }
  if source ~= 'list' then
    -- The name replaces that of the object that the slot has left, if there is one.
    local put
    if slot.left then
      put = redis_try('LSET', slot.objects_key, '-1', object)
    else
      put = redis_try('LPUSH', slot.objects_key, object)
    end
    if (slot.left or type(put) == 'table') and put.err then
      rare.events.put_name_again(slot, entry, put)
    end
    slot.left = false
  end
  add_batch(slot, entry, false)
  set(owner_key, slot.owner)
  if last and this.bounds.forgets then
    -- Sets the last id again, which removes its time to live. The last id must not expire while
    -- later events of the object are in flight.
    set(P .. object .. K.last_event_id, last)
  end
  local q = this.queues_n + 1
  this.queues[q] = queue
  this.queues_n = q
  budget.claims_left = budget.claims_left - 1
  if this.took then
    this.took[#this.took + 1] = object
  end
  return 'claimed'
end

return { claim = claim }
