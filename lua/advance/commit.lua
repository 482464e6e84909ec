-- commit: commits the results of batches in flight.
local find, set, delete = string.find, writes.set, writes.delete
local EVENTS, LAST_ID, TAGS_AFTER = K.events, K.last_event_id, call.TAGS_AFTER

-- Deletes a batch that is delivered as a whole, and writes the last id of its object. The tag is
-- deleted at the end of the call, if the slot has no other batch by then.
local function write(slot)
  delete(slot.batch_key)
  set(P .. slot.object .. LAST_ID, slot.last)
  slot.is_committed, call.progress = true, true
end

-- Commits a batch that is delivered as a whole, in further steps: the word is another one, the log
-- is on, handlers have finished an event, or the tag has a blank. Returns whether the slot leaves
-- its object.
local function write_unusual(slot)
  if not guard(rare.results.prepare, slot) then
    return false
  end
  write(slot)
  guard(rare.results.finish, slot)
  if slot.word == 'yield' and redis_call('EXISTS', P .. slot.object .. K.events) == 1 then
    guard(rare.going_on.let_go, slot, slot.object)
    return false
  end
  return true
end

-- The queues of the objects that slots leave.
local queues = { nil }

-- Commits all results. Returns the queues of the objects that slots leave, and their number.
local function commit_all()
  local slots, texts, counter, q, is_plain = call.slots, call.texts, call.counter, 0, not call.logs and not call.handled
  local at = TAGS_AFTER
  for i = 1, call.slots_n do
    if call.failed then
      break
    end
    local slot, is_over, owns = slots[i], false, true
    at = at + 1
    local tag, word = texts[at], slot.word
    if word ~= 'free' then
      at = at + 1
      if tag ~= slot.tag then
        tag = guard(rare.missing.tag_again, slot, tag)
      end
      if texts[at] ~= slot.owner and tag and tag == slot.tag then
        owns = guard(rare.missing.owns, slot, texts[at])
      end
    end
    if tag and tag == slot.tag and (word == 'done' or word == 'yield') then
      local last = slot.last
      if last - counter > 0 then
        -- The counter is from an earlier state of Redis, and the caller no longer knows the highest
        -- id that it has seen.
        rare.counter.rise_above(tonumber(last))
      end
      -- A tag has a blank if it has hand-outs, attempts or crashes, or if the event has a key. The first
      -- look spares most tags the second one, which leaves out the name.
      if is_plain and word == 'done' and (not find(tag, ' ', 1, true) or not rare.tag.is_odd(tag)) then
        write(slot)
        is_over = true
      else
        is_over = write_unusual(slot)
      end
    elseif tag then
      is_over = guard(rare.results.settle, slot, tag)
    end
    -- The name of an object that another slot owns is a stray name in the list of this one.
    if is_over and owns then
      q = q + 1
      local object = slot.object
      slot.left = object
      queues[q] = P .. object .. EVENTS
    end
  end
  if call.logs and not call.failed then
    guard(rare.log.trim)
  end
  return queues, q
end

return { commit_all = commit_all }
