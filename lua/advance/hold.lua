-- hold: what a slot has is put back or held.

-- Not by string.format, which cuts a name at a NUL.
local function quarantined_by(wrong)
  return 'quarantine: ' .. wrong .. ' is a ' .. call('TYPE', P .. wrong).ok
end

-- What the keys of the slot begin with.
local function at_of(slot)
  return P .. WORKER .. slot.w
end

-- Holds the batch of a slot as it is, until an operator releases it, because what its result asks for cannot be done.
local function hold_back(slot, object, why)
  local first, handouts, attempts, crashes = numbers(args[slot.arg + 1])
  hold_batch(at_of(slot), object, 'inf', held_id_of(first, handouts, attempts, crashes, why))
  quarantined[#quarantined + 1] = object
  quarantined[#quarantined + 1] = why
end

local function hold_now(slot, object)
  hold(at_of(slot), object, now_ms, nil)
end

-- Puts back what was taken, as if nothing had been.
local function put_back(slot, object, entry)
  for i = #entry, EVENTS_FROM, -1 do
    call('RPUSH', P .. object .. events, entry[i])
    reply_bytes = reply_bytes + #entry[i]
  end
  call('DEL', slot.batch)
end

-- Holds an object the slot has, until an operator releases it, because its key `wrong` has a wrong type: that must stop nothing else.
local function quarantine(slot, object, wrong)
  put_aside[object] = true
  local why = quarantined_by(wrong)
  hold(at_of(slot), object, 'inf', '0 0 0 0 ' .. why)
  try('ZREM', P .. objects_paused, object)
  quarantined[#quarantined + 1] = object
  quarantined[#quarantined + 1] = why
end

-- Holds a held object whose owner's key has a wrong type, until an operator releases it: its batch and the numbers of that stay what they are.
local function quarantine_held(slot, object)
  put_aside[object] = true
  quarantined[#quarantined + 1] = object
  quarantined[#quarantined + 1] = quarantined_by(object .. event_worker)
  call('ZADD', P .. objects_held, 'inf', object)
  try('ZREM', P .. objects_paused, object)
  call('SET', P .. object .. event_worker, 'held')
  call('LREM', slot.list, '1', object)
end

-- Whether the object is among the held or the paused ones. Where that cannot be told of the paused ones, because their key has a wrong type, it is.
local function is_held(object)
  return call('ZSCORE', P .. objects_held, object) or try('ZSCORE', P .. objects_paused, object)
end

return {
  now = hold_now, batch = hold_batch, back = hold_back, put_back = put_back, stray = stray, at_of = at_of,
  quarantine = quarantine, quarantine_held = quarantine_held, quarantined_by = quarantined_by, is_held = is_held,
}
