-- own: a slot becomes the owner of an object, and gets a batch of it.

-- Puts the object into the slot's list, in the place of the one it has left. Answers the error where that cannot be done.
local function enlist(slot, object)
  local put = slot.left and try('LSET', slot.list, '-1', object) or try('LPUSH', slot.list, object)
  if type(put) == 'table' and put.err then
    return put
  end
  slot.left = false
end

-- Slots that have claimed an object and its first event: more of them, and ids, they get together.
local claimed, claimed_queues, claimed_entries = {}, {}, {}

-- Makes the slot the owner of `object` and takes its first event. Answers 'claimed', 'empty', 'paused', or 'wrong'.
-- `owner` and `last` are what its keys tell; `sound` that where they tell nothing, there is nothing; `named` that the slot's list has the name.
local function own(slot, object, owner, last, sound, named)
  if rules_next and owner ~= 'held' and rules().pause(slot, object, last, named) then
    return 'paused'
  end
  local entry, wrong = take_first(slot, object)
  if wrong then
    hold().quarantine(slot, object, wrong)
    return 'wrong'
  elseif not entry then
    return 'empty'
  end
  -- Ids are given when all slots have claimed: in time for a counter that jumps only now.
  local last_id = last and id_of(last)
  if last and not (last_id and rise_above(last_id)) or not last and not sound and call('EXISTS', P .. object .. last_event_id) == 1 then
    hold().put_back(slot, object, entry)
    hold().quarantine(slot, object, object .. last_event_id)
    return 'wrong'
  end
  -- A key that told nobody, and yet is there, has a wrong type: nobody may pass over what is held.
  if not owner and not sound and call('EXISTS', P .. object .. event_worker) == 1 and hold().is_held(object) then
    hold().put_back(slot, object, entry)
    hold().quarantine_held(slot, object)
    return 'wrong'
  end
  local failed = not named and enlist(slot, object)
  if failed then
    hold().put_back(slot, object, entry)
    error(failed)
  end
  set_later(P .. object .. event_worker, slot.w)
  if last and forget_ms > 0 then
    -- Set anew it has no time to live: it must not be forgotten while events that follow on it are in flight.
    set_later(P .. object .. last_event_id, last)
  end
  entry[4] = last or '0'
  local n = #claimed + 1
  claimed[n], claimed_queues[n], claimed_entries[n] = slot, P .. object .. events, entry
  claims, slot.has, slot.object, progress = claims - 1, true, object, true
  return 'claimed'
end

-- Gives the slots that have claimed what else there is, and ids. Where objects have one event each, as is the rule while nothing has piled up, one
-- look tells.
local function fill()
  local some_left = #claimed > 0 and call('EXISTS', unpack(claimed_queues)) > 0
  for n, slot in ipairs(claimed) do
    local entry = claimed_entries[n]
    if some_left and reply_bytes > 0 then
      take_more(slot, entry)
    end
    give(slot, entry[4], entry)
  end
end
