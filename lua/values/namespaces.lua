-- namespaces: the shared keys of a namespace that every call reads, and the slots of worker names.
--
-- The keys are made once, and live as long as the library. So do the slots: a slot is a record of
-- its keys, and of what a call knows of it.

-- The most slots that are remembered: about 8 MB of Lua's memory. Then all are forgotten. A
-- namespace and a name count as a slot each, because a call may name no slot.
local SLOTS_MAX = 8192
local by_prefix, slots_known = {}, 0

-- Makes the record of a slot when the slot is first used. For each slot that a call names,
-- `arguments.read_slots` sets the fields after `tag_key` anew, except those of some results only. A
-- record has 16 fields, because Lua doubles the memory of a table with one field more.
local new_slot = { __index = function(slots, number)
  local base = slots.base .. number
  local slot = {
    -- `owner`: the id of the worker that the slot is.
    number = number, owner = slots.name .. '.' .. number,
    objects_key = base .. K.worker_object, batch_key = base .. K.worker_event, tag_key = base .. K.worker_event_id,
    -- The result that the caller reports: its word; the object and the tag of the batch, the id of
    -- its last event; with the log on, the age of the batch; the fields of all words but
    -- `free` and `done`. After the result of a part, `last` is the object's last id.
    word = false, object = false, tag = false, last = false, age = false, result = false,
    -- `true` if handlers have finished for an event of the batch, then the progress that
    -- `progress.read` has read. Counts only if `call.handled` is set.
    handled = false,
    -- Whether the batch that the caller names was committed.
    is_committed = false,
    -- The object that the slot has left, whose name is still in the slot's list. `commit` sets it.
    -- `going_on` clears it if the slot goes on with the object, or the object is held. A claim
    -- clears it, because the name of the new object replaces the old one. After a failure,
    -- `advance.release` clears it, so that the slot keeps the object. `advance.finish` removes a name
    -- that is left.
    left = false,
    -- Whether the slot has a batch.
    is_busy = false,
    -- The key of the schedule whose event the slot has taken.
    key = false,
  }
  rawset(slots, number, slot)
  slots_known = slots_known + 1
  return slot
end }

-- Returns the shared keys of the namespace with the prefix `P`. Callers do this before they use a
-- slot.
local function current()
  if slots_known >= SLOTS_MAX then
    by_prefix, slots_known = {}, 0
  end
  local keys = by_prefix[P]
  if not keys then
    keys = {
      workers = {}, counter = P .. K.next_event_id, groups_waiting = P .. K.event_groups_waiting, shares = P .. K.event_shares_summary,
      held = P .. K.objects_held, rules = P .. K.event_rules, markers = P .. K.objects_with_events,
    }
    by_prefix[P], slots_known = keys, slots_known + 1
  end
  return keys
end

-- Returns the slots of a worker name, by their numbers as texts.
local function slots_of(keys, name)
  local slots = keys.workers[name]
  if not slots then
    slots = setmetatable({ base = P .. K.WORKER .. name .. '.', name = name }, new_slot)
    keys.workers[name], slots_known = slots, slots_known + 1
  end
  return slots
end

return { current = current, slots_of = slots_of }
