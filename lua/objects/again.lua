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
  redis_call('SET', slot.tag_key, rare.tag.stored(tag, object))
  for k = #batch, 1, -1 do
    budget.bytes_left = budget.bytes_left - #batch[k]
    entry[#entry + 1] = batch[k]
  end
  -- The ids of this batch must not be given to slots that claim in this call.
  rare.counter.rise_above(ids.after(tonumber((rare.tag.numbers(tag))), #batch - 1))
  local e = call.entries_n + 1
  call.reply[call.BATCHES_AFTER + e], call.entry_slots[e], call.entries_n = entry, false, e
  rare.spending.events(#batch)
  call.progress = true
end

-- Gives a slot its batch again if the call has no result for this batch: no result at all, or the
-- result of another batch. `stored`: the text in Redis.
local function give_unknown(slot, stored)
  local tag = rare.tag.split(stored)
  if not rare.tag.first_of(tag) then
    -- The text is no tag. So the tag is lost, and the slot is like any other one without a tag.
    redis_call('DEL', slot.tag_key)
    return
  end
  local object, is_owned = rare.missing.object_of(slot, stored)
  if is_owned then
    local _, _, _, crashes = rare.tag.numbers(tag)
    if crashes > 0 then
      rare.room.taken(crashes)
    end
    return give(slot, object, tag)
  end
  -- The slot does not own the object of its batch: the owner key, or the tag and the list, are lost.
  if rare.missing.length_of(slot) > 0 then
    return rare.missing.put(slot, object, stored)
  end
  redis_call('DEL', slot.tag_key)
  slot.is_busy = false
end

return { give = give, give_unknown = give_unknown }
