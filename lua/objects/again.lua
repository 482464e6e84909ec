-- again: gives a slot its batch again.

-- Adds the slot's batch to the reply: the events left of a batch, or the whole batch after a lost
-- reply, a restart or a hold. Quarantines the object if the batch is absent: the slot would wait for
-- it for ever.
local function give(slot, object, tag)
  slot.is_busy = true
  if budget.bytes_left <= 0 then
    return
  end
  local batch = redis_call('LRANGE', slot.batch_key, '0', '-1')
  if not batch[1] then
    slot.is_busy = false
    return rare.quarantine.put_without_batch(slot, object)
  end
  local entry = { slot.number, object, tag, rare.counter.last_of(object) }
  -- Writes the same tag again, so that WAIT on this connection also covers the batch. WAIT covers
  -- only writes of its own connection, and another connection may have written the batch.
  redis_call('SET', slot.tag_key, tag)
  for k = #batch, 1, -1 do
    budget.bytes_left = budget.bytes_left - #batch[k]
    entry[#entry + 1] = batch[k]
  end
  -- The ids of this batch must not be given to slots that claim in this call.
  rare.counter.rise_above(ids.after(tonumber((rare.tag.numbers(tag))), #batch - 1))
  local e = call.entries_n + 1
  call.entries[e], call.entry_slots[e], call.entries_n = entry, false, e
  rare.spending.events(#batch)
  call.progress = true
end

-- Gives a slot its batch again if the call has no result for this batch: no result at all, or the
-- result of another batch.
local function give_unknown(slot, tag)
  if not rare.tag.first_of(tag) then
    -- The text is no tag. So the tag is lost, and the slot is like any other one without a tag.
    redis_call('DEL', slot.tag_key)
    return
  end
  slot.is_busy = true
  local object = rare.missing.owned_by(slot)
  if object then
    local _, _, _, crashes = rare.tag.numbers(tag)
    if crashes > 0 then
      rare.room.taken(crashes)
    end
    return give(slot, object, tag)
  end
  -- The slot owns no object: its list, or the owner key of its object, is lost.
  if rare.missing.length_of(slot) > 0 then
    return rare.missing.put(slot, tag)
  end
  redis_call('DEL', slot.tag_key)
  slot.is_busy = false
end

return { give = give, give_unknown = give_unknown }
