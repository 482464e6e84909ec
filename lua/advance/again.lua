-- again: what a slot has is given to it again.

-- MGET, because it answers nil for a key of a wrong type where GET would fail. What is no id must not reach the caller: with the
-- batch in hand there is nothing to hold back any more, and 0 is an id before it.
local function last_of(object)
  local last = call('MGET', P .. object .. last_event_id)[1]
  return last and id_of(last) and last or '0'
end

-- Gives the slot the batch it has: what remains of one, or all of it after a lost reply, a restart, a hold.
local function give_again(slot, object, tag)
  slot.has = true
  if reply_bytes <= 0 then
    return
  end
  local batch = call('LRANGE', slot.batch, 0, -1)
  local entry = { slot.number, object, tag, last_of(object) }
  for i = #batch, 1, -1 do
    reply_bytes = reply_bytes - #batch[i]
    entry[#entry + 1] = batch[i]
  end
  -- Slots that claim in this call must not get the ids of this batch.
  rise_above(tonumber(string.match(tag, '^%d+')) + #batch - 1)
  entries[#entries + 1] = entry
  count_events(#batch)
  progress = true
end

-- The batch of a slot whose result, if any, speaks of another one.
local function give_unknown(slot, tag)
  slot.has = true
  for _, object in ipairs(call('LRANGE', slot.list, 0, -1)) do
    if not is_foreign(object) and call('MGET', P .. object .. event_worker)[1] == slot.w then
      local _, _, _, crashes = numbers(tag)
      if crashes > 0 then
        suspects().taken(crashes)
      end
      return give_again(slot, object, tag)
    end
  end
end

return { last_of = last_of, give = give_again, give_unknown = give_unknown }
