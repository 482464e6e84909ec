-- slots: the objects and names in the slots of one worker name.
-- Uses: hold.batch hold.give_back hold.object names.is_foreign registry.check_types tag.held_text
-- Uses: tag.numbers worker.id

-- Calls `owned(at, slot, object, tag)` for every object that a slot of `name` owns; `at`: the
-- beginning of the slot's keys; `tag`: false if the slot has no batch. Moves all other names in the
-- slots' lists back to the markers. If `most` objects and names have been met, stops after the
-- present slot (nil: no limit). Returns the number of names moved back.
local function each_slot(name, slots, owned, most)
  local strays, met = 0, 0
  for slot = 0, slots - 1 do
    if most and met >= most then
      break
    end
    local w = M.worker.id(name, slot)
    local at = P .. K.WORKER .. w
    -- A list of a wrong type is left as it is. A renewal must still keep the name. `seriatim check`
    -- and the next call of advance report the list.
    local taken = try('LRANGE', at .. K.worker_object, 0, -1)
    met = met + #taken
    local had
    for i = #taken, 1, -1 do
      local object = taken[i]
      local values = M.names.is_foreign(object) and {} or call('MGET', P .. object .. K.event_worker, at .. K.worker_event_id)
      if object == had then
        -- Two pops have moved the same object into the list. One copy is enough to cover it.
        call('LREM', at .. K.worker_object, 1, object)
      -- MGET returns nil for a key of a wrong type, so such an object counts as one without an
      -- owner. A foreign name goes back to the markers, too: advance drops and reports it.
      elseif values[1] == w then
        had = object
        owned(at, slot, object, values[2])
      else
        M.hold.give_back(at, object)
        strays = strays + 1
      end
    end
  end
  return strays
end

-- Raises WRONGTYPE, before the first write, if a key of a slot or a shared key has a wrong type.
local function check_types(name, slots)
  call('LLEN', P .. K.objects_with_events)
  call('ZCARD', P .. K.objects_held)
  M.registry.check_types()
  for slot = 0, slots - 1 do
    local at = P .. K.WORKER .. M.worker.id(name, slot)
    call('LLEN', at .. K.worker_object)
    call('LLEN', at .. K.worker_event)
    call('STRLEN', at .. K.worker_event_id)
  end
end

-- Returns whether an event with so many crashes must wait for an operator. `crashes_max` 0: never.
local function is_used_up(crashes, crashes_max)
  return crashes_max > 0 and crashes >= crashes_max
end

-- Holds the object of a slot, due now. If its event has reached the limit of crashes, holds the
-- object for an operator. Does so also if the batch is absent, because it was deleted by hand or
-- evicted: an error would end every sweep. `tag`: false if the slot has no batch. `cause`:
--   now_ms       the time
--   why          the reason
--   died         whether the worker died: a batch in flight has one crash more
--   crashes_max  with `died`: crashes after which an event waits for an operator (0: never)
local function hold_owned(at, object, tag, cause)
  if not tag then
    return M.hold.object(at, object, cause.now_ms, nil)
  elseif call('EXISTS', at .. K.worker_event) == 0 then
    local why = 'quarantine: ' .. string.sub(at, #P + 1) .. K.worker_event .. ' is absent'
    return M.hold.object(at, object, 'inf', M.tag.held_text('0', 0, 0, 0, why))
  end
  local first, handouts, attempts, crashes = M.tag.numbers(tag)
  local due, why = cause.now_ms, cause.why
  if cause.died then
    crashes = crashes + 1
    if is_used_up(crashes, cause.crashes_max) then
      due = 'inf'
      why = string.format('crashes: died %d times with this event in hand', crashes)
    end
  end
  M.hold.batch(at, object, due, M.tag.held_text(first, handouts, attempts, crashes, why))
end

return { each = each_slot, check_types = check_types, is_used_up = is_used_up, hold_owned = hold_owned }
