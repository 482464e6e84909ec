-- popped: names that a pop has moved into the list of a free slot.
local byte = string.byte
-- The most objects that a call claims, so that room remains for further events of these objects.
local CLAIMS_MAX = 512

-- The slots without a batch that have left no object, their lists and batches.
local free, lists, batch_keys = { nil }, { nil }, { nil }

-- Finds these slots. Returns their number, and the number of all slots without a batch. The list of
-- a slot that has just left an object exists in any case, because it still has the name of that
-- object.
local function free_slots()
  local slots, l, without = call.slots, 0, 0
  for i = 1, call.slots_n do
    local slot = slots[i]
    if not slot.is_busy then
      without = without + 1
      if not slot.left then
        l = l + 1
        free[l], lists[l], batch_keys[l] = slot, slot.objects_key, slot.batch_key
      end
    end
  end
  return l, without
end

-- Returns those of the `l` free slots whose lists have names, in order. `count`: the number of
-- these lists. The search begins with the last list, because a pop is made for the last free slot.
local function with_names(l, count)
  local found = {}
  for k = l, 1, -1 do
    if count > 0 and redis_call('EXISTS', free[k].objects_key) == 1 then
      table.insert(found, 1, free[k])
      count = count - 1
    end
  end
  return found
end

-- Claims the object whose name a pop has moved into the slot's list. A pop has moved the name if it
-- is alone in its list, does not begin with a brace or a NUL, and its object has no owner. While
-- objects are held or woken, it may be one that has lost its owner. All other names are unusual.
local function claim_name(slot)
  local names, got = redis_try('LRANGE', slot.objects_key, '0', '-1'), nil
  local object = names[1]
  if names.err then
    call.failed = names
  end
  if not object then
    return
  end
  writes.flush()
  local first = byte(object) or 0
  local is_alone = not names[2] and not call.limited and first ~= 0 and first ~= 123
  if is_alone and budget.claims_left > 0 and budget.bytes_left > 0 and not call.claimed[object] then
    local owner_key = P .. object .. K.event_worker
    if redis_call('EXISTS', owner_key) == 0 and not call.has_held and not call.held_changed and call.rules_next ~= '0' then
      local last = redis_try('GET', P .. object .. K.last_event_id)
      if type(last) ~= 'table' then
        got = guard(claims.claim, slot, object, false, last, 'list', owner_key, true)
      end
    end
  end
  if got ~= 'claimed' and not call.failed then
    guard(rare.stray_names.claim, slot, names)
  end
end

-- Sets the most objects that the call may claim: no more than there are free slots. Then claims the
-- objects whose markers were moved by pops.
local function claim()
  if call.failed then
    return
  end
  local l, without = free_slots()
  if l > 0 then
    if call.held_changed then
      -- A batch that is committed is not deleted yet.
      writes.flush()
    end
    if redis_call('EXISTS', unpack(batch_keys, 1, l)) > 0 then
      -- A slot without a tag has a batch, so a key is lost. No other event may get into this batch.
      writes.flush()
      guard(rare.missing.free_all)
      l, without = free_slots()
    end
  end
  budget.claims_left = math.min(budget.claims_left, without, CLAIMS_MAX)
  local count = call.failed and 0 or l > 1 and redis_call('EXISTS', unpack(lists, 1, l)) or l
  local found = l > 1 and count > 0 and with_names(l, count) or free
  for k = 1, math.min(count, #found) do
    if not call.failed then
      claim_name(found[k])
    end
  end
end

return { claim = claim }
