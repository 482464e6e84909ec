-- slots: the objects and names in the slots of one worker name.

-- The most texts about lost keys in a reply.
local TEXTS_MAX = 128

-- Adds an entry to the texts for the caller, if there is room.
local function tell(lost, name, what)
  if #lost < TEXTS_MAX then
    lost[#lost + 1] = name
    lost[#lost + 1] = what
  end
end

-- Returns whether the last of the names in the slot's list is the object of the slot's batch, although
-- the object has no owner. Its owner key is lost then. Later names are pushed before the name of the
-- object. `named`: the object that the tag names. If it names none, the last name counts as the object,
-- unless the slot owns another one.
local function has_lost_owner(at, w, names, named)
  local object = names[#names]
  -- No object has the name of a mark.
  local is_none = object == '' or string.sub(object, 1, 2) == '\0t' or rare.names.is_foreign(object)
  if is_none or redis_call('EXISTS', P .. object .. K.event_worker) == 1 or redis_call('EXISTS', at .. K.worker_event) == 0 then
    return false
  elseif named then
    return named == object
  end
  for _, other in ipairs(names) do
    if not rare.names.is_foreign(other) and redis_call('MGET', P .. other .. K.event_worker)[1] == w then
      return false
    end
  end
  return true
end

-- Returns the tag in the value of event.worker:W:event.id, and the object that it names; the tag is false
-- if it is lost, or the text is no tag.
local function tag_of(stored)
  local tag, named = rare.tag.split(stored or '')
  return rare.tag.first_of(tag) and tag or false, named
end

-- Gives the object of a slot's batch to `owned`, although the slot's list is lost: the list gets the name
-- again. A batch whose object is not known, or belongs to another slot, leaves the slot. Returns a text
-- about a lost key: a name, and what has happened to it.
local function without_list(at, slot, w, owned)
  local stored = redis_call('GET', at .. K.worker_event_id)
  local tag, object, owner = tag_of(stored), rare.lost.named(stored)
  if owner == w then
    redis_call('RPUSH', at .. K.worker_object, object)
    local why = owned(at, slot, object, tag)
    if why then
      return object, why
    end
    return K.WORKER .. w .. K.worker_object, 'mended: the list of a slot with a batch was absent'
  elseif owner == '' then
    return object, rare.lost.hold(at, object, tag)
  end
  return K.WORKER .. w, rare.lost.put(at, stored)
end

-- Takes an object from a slot that owns it, but has the batch of another object. The object is held, with
-- its batch if the slot has put that away. Returns the reason if it waits for an operator.
local function release_other(at, object)
  local is_held, why = rare.lost.hold_again(at, object, true)
  if not is_held then
    rare.hold.other(at, object, rare.time.now_ms(), nil)
  end
  return why
end

-- Calls `owned(at, slot, object, tag)` for every object that a slot of `name` owns. `at` is the
-- beginning of the slot's keys. `tag` is the tag of the slot's batch; it is false if the tag is lost.
-- A text that is no tag counts as a lost tag. All other names in the slots' lists become markers
-- again. The function stops after the slot with which it has met `most` things (nil: no limit).
-- Things are objects, names, and batches without an object.
--
-- The function returns the number of names that became markers, texts about lost keys (name, text,
-- …), and the number of things.
--
-- If the owner key of the slot's object is lost, the object is held with the batch for an operator.
-- If `in_hand`, the process has the batch in hand, and the key is written again. A batch whose
-- object is not known leaves the slot, unless `in_hand`.
local function each_slot(name, slots, owned, most, in_hand)
  local strays, met, lost = 0, 0, {}
  for slot = 0, slots - 1 do
    if most and met >= most then
      break
    end
    local w = rare.worker.id(name, slot)
    local at = P .. K.WORKER .. w
    -- A list of a wrong type is left as it is. A renewal must still keep the name. `seriatim check`
    -- and the next call of advance report the list.
    local taken = redis_try('LRANGE', at .. K.worker_object, 0, -1)
    met = met + #taken
    local had
    for i = #taken, 1, -1 do
      local object = taken[i]
      local values = rare.names.is_foreign(object) and {} or redis_call('MGET', P .. object .. K.event_worker, at .. K.worker_event_id)
      local tag, named = tag_of(values[2])
      local is_lost = i == #taken and values[2] and not values[1] and has_lost_owner(at, w, taken, named)
      if is_lost and in_hand then
        redis_call('SET', P .. object .. K.event_worker, w)
        tell(lost, object .. K.event_worker, 'mended: the owner of an object in hand was absent')
        had = object
      elseif is_lost then
        tell(lost, object, rare.lost.hold(at, object, tag))
        had = object
      elseif object == had then
        -- Two pops have moved the same object into the list. One copy is enough to cover it.
        redis_call('LREM', at .. K.worker_object, 1, object)
      -- MGET returns nil for a key of a wrong type, so such an object counts as one without an
      -- owner. A foreign name goes back to the markers, too: advance drops and reports it.
      elseif values[1] == w then
        local why = nil
        if not named or named == object then
          had = object
          why = owned(at, slot, object, tag)
        elseif not in_hand then
          why = release_other(at, object)
        end
        if why then
          tell(lost, object, why)
        end
      else
        rare.hold.give_back(at, object)
        strays = strays + 1
      end
    end
    if not had and not in_hand and redis_call('EXISTS', at .. K.worker_event) == 1 then
      tell(lost, without_list(at, slot, w, owned))
      met = met + 1
    end
  end
  return strays, lost, met
end

-- The most slots of a name.
local SLOTS_MAX = 1024
-- The most keys of one command.
local KEYS_MAX = 1024

-- Returns whether a slot of `name`, from `first` to `slots - 1`, has the key that ends with `key`. One
-- command spares a look at each slot.
local function any(name, key, first, slots)
  for from = first, slots - 1, KEYS_MAX do
    local keys = {}
    for slot = from, math.min(slots, from + KEYS_MAX) - 1 do
      keys[#keys + 1] = P .. K.WORKER .. rare.worker.id(name, slot) .. key
    end
    if redis_call('EXISTS', unpack(keys)) > 0 then
      return true
    end
  end
  return false
end

-- Returns whether any slot of `name` has a list of taken objects. The slots of an idle worker have
-- none.
local function any_taken(name, slots)
  return any(name, K.worker_object, 0, slots)
end

-- Returns the number of slots to look at, at least `own`, and the last token of the name. `own`: the
-- slots of the calling process. If the registration is lost, an earlier process of the name may have
-- left something in any slot. Then the number ends with the last slot that has something.
local function known(name, own)
  local slots, token = rare.registry.find(name)
  if not token and (any(name, K.worker_object, own, SLOTS_MAX) or any(name, K.worker_event, own, SLOTS_MAX)) then
    slots = SLOTS_MAX
    while not any(name, K.worker_object, slots - 1, slots) and not any(name, K.worker_event, slots - 1, slots) do
      slots = slots - 1
    end
  end
  return math.max(slots, own), token
end

-- Raises WRONGTYPE, before the first write, if a key of a slot or a shared key has a wrong type.
local function check_types(name, slots)
  redis_call('LLEN', P .. K.objects_with_events)
  redis_call('ZCARD', P .. K.objects_held)
  rare.registry.check_types()
  for slot = 0, slots - 1 do
    local at = P .. K.WORKER .. rare.worker.id(name, slot)
    redis_call('LLEN', at .. K.worker_object)
    redis_call('LLEN', at .. K.worker_event)
    redis_call('STRLEN', at .. K.worker_event_id)
  end
end

-- Returns whether an event with so many crashes must wait for an operator. `crashes_max` 0: never.
local function is_used_up(crashes, crashes_max)
  return crashes_max > 0 and crashes >= crashes_max
end

-- Holds the object of a slot, due now. If its event has reached the limit of crashes, holds the
-- object for an operator. Does so also if the batch or its tag is absent, because it was deleted by
-- hand or evicted: an error would end every sweep. Returns the reason in this case, else nil. `tag`:
-- false if the slot has no tag. `cause`:
--   now_ms       the time
--   why          the reason
--   died         whether the worker died: a batch in flight has one crash more
--   crashes_max  with `died`: crashes after which an event waits for an operator (0: never)
local function hold_owned(at, object, tag, cause)
  if not tag and redis_call('EXISTS', at .. K.worker_event) == 1 then
    return rare.lost.hold(at, object, false)
  elseif not tag then
    local is_held, lost_why = rare.lost.hold_again(at, object)
    if not is_held then
      rare.hold.object(at, object, cause.now_ms, nil)
    end
    return lost_why
  elseif redis_call('EXISTS', at .. K.worker_event) == 0 then
    local why = 'quarantine: ' .. string.sub(at, #P + 1) .. K.worker_event .. ' is absent'
    rare.hold.object(at, object, 'inf', rare.tag.held_text('0', 0, 0, 0, why))
    redis_call('DEL', P .. object .. K.event_errors, P .. object .. K.event_key)
    return why
  end
  local first, handouts, attempts, crashes = rare.tag.numbers(tag)
  local due, why = cause.now_ms, cause.why
  if cause.died then
    crashes = crashes + 1
    if is_used_up(crashes, cause.crashes_max) then
      due = 'inf'
      why = string.format('crashes: died %d times with this event in hand', crashes)
    end
  end
  local joined = rare.hold.batch(at, object, due, rare.tag.held_text(first, handouts, attempts, crashes, why))
  return joined or due == 'inf' and why or nil
end

return {
  SLOTS_MAX = SLOTS_MAX,
  each = each_slot,
  any_taken = any_taken,
  known = known,
  check_types = check_types,
  is_used_up = is_used_up,
  hold_owned = hold_owned,
}
