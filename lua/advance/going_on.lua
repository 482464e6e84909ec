-- going_on: lets slots go on with their objects, or lets these objects wait for a turn.
local byte = string.byte

-- Holds an object without a batch, due now, so that other objects get a turn, or because only the
-- next call has room for its events.
local function let_go(slot, object)
  rare.hold.object(rare.worker.at(slot.owner), object, rare.time.now_ms(), nil)
  call.held_changed = true
end

-- Gives a slot the next events of the object that it has left, if there are any.
local function go_on(slot, object)
  local queue = P .. object .. K.events
  local is_over = call.limited and rare.share_limits.events_left(object) < 1 and redis_call('EXISTS', queue) == 1
  if budget.bytes_left <= 0 or is_over then
    let_go(slot, object)
    slot.left = false
    return
  elseif call.rules_next and rare.pauses.pause(slot, object, nil, 'list') then
    slot.left = false
    return
  end
  local event, why = redis_try('LMOVE', queue, slot.batch_key, 'RIGHT', 'LEFT'), nil
  if type(event) == 'table' then
    slot.left = false
    rare.quarantine.put(slot, object, rare.quarantine.wrong_of(slot, object, event))
    return
  elseif event and byte(event) == 0 then
    event, why = rare.keyed.take(slot, object, event)
  end
  if not event then
    if why == 'wrong' or why == 'postponed' then
      slot.left = false
    end
    return
  end
  local first = ids.after(call.counter, 1)
  local tag = ids.text(first)
  tag = slot.key and rare.keyed.tag_of(slot, object, tag) or tag
  local entry = { slot.number, object, tag, slot.last, event }
  batches.add(slot, entry, true)
  slot.left = false
  writes.set(slot.tag_key, rare.tag.stored(tag, object))
  if call.took then
    rare.share_limits.took(object, 1)
  end
  if not slot.key then
    guard(rare.events.take, slot, entry)
  end
  -- The counter rises even if `events.take` has failed, so that no id is given twice.
  call.counter = ids.after(call.counter, #entry - 4)
end

-- Lets the slots go on with the objects that they have left, as far as these have more events.
local function all()
  for i = 1, call.slots_n do
    local slot = call.slots[i]
    if slot.left and not call.failed then
      go_on(slot, slot.left)
    end
  end
end

return { let_go = let_go, all = all }
