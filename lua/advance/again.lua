-- again: gives a slot its batch again.
-- Uses: aside.put_without_batch batch.count ids.MAX ids.after ids.parse jump.beyond
-- Uses: missing.length_of missing.put names.is_foreign room.taken tag.numbers worker.id

-- Returns the object's last id; '0' if the id is absent or invalid. Uses MGET, which returns nil
-- for a key of a wrong type; GET would raise. An invalid id must not reach the caller. While the
-- batch is in hand, it is too late to hold the object. So the caller gets 0, which is below every
-- id.
local function last_of(object)
  local last = call('MGET', P .. object .. K.last_event_id)[1]
  return last and M.ids.parse(last) and last or '0'
end

-- If `id`, which was given before, is above the counter, makes the counter jump above it. Returns
-- whether the counter leaves room for new ids.
local function rise_above(id)
  if id > C.counter then
    local risen = M.jump.beyond(id)
    if M.ids.after(risen, 1024 * tonumber(ARGV[4])) > M.ids.MAX then
      return false
    end
    C.counter = risen
  end
  return true
end

-- Adds the slot's batch to the reply: the events left of a batch, or the whole batch after a lost
-- reply, a restart or a hold. Puts the object aside if the batch is absent: the slot would wait for
-- it for ever.
local function give(i, object, tag)
  C.busy[i] = true
  if C.bytes_left <= 0 then
    return
  end
  local batch = call('LRANGE', C.base[i] .. K.worker_event, '0', '-1')
  if not batch[1] then
    C.busy[i] = false
    return M.aside.put_without_batch(i, object)
  end
  local entry = { C.number[i], object, tag, last_of(object) }
  -- Writes the same tag again, so that WAIT on this connection also covers the batch. WAIT covers
  -- only writes of its own connection, and another connection may have written the batch.
  call('SET', C.base[i] .. K.worker_event_id, tag)
  for k = #batch, 1, -1 do
    C.bytes_left = C.bytes_left - #batch[k]
    entry[#entry + 1] = batch[k]
  end
  -- The ids of this batch must not be given to slots that claim in this call.
  rise_above(M.ids.after(tonumber((M.tag.numbers(tag))), #batch - 1))
  C.entries[#C.entries + 1] = entry
  M.batch.count(#batch)
  C.progress = true
end

-- Gives a slot its batch again if the call has no result for this batch: no result at all, or the
-- result of another batch.
local function give_unknown(i, tag)
  C.busy[i] = true
  for _, object in ipairs(call('LRANGE', C.base[i] .. K.worker_object, '0', '-1')) do
    if not M.names.is_foreign(object) and call('MGET', P .. object .. K.event_worker)[1] == M.worker.id(C.name, C.number[i]) then
      local _, _, _, crashes = M.tag.numbers(tag)
      if crashes > 0 then
        M.room.taken(crashes)
      end
      return give(i, object, tag)
    end
  end
  -- The slot owns no object: its list, or the owner key of its object, is lost.
  if M.missing.length_of(i) > 0 then
    return M.missing.put(i, tag)
  end
  call('DEL', C.base[i] .. K.worker_event_id)
  C.busy[i] = false
end

return { last_of = last_of, rise_above = rise_above, give = give, give_unknown = give_unknown }
