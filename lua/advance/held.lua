-- held: held objects that are due.

-- A held batch, handed out once more.
local function claim_batch(slot, object, first, handouts, attempts, crashes)
  local count = try('LLEN', P .. object .. events_held)
  local last = try('GET', P .. object .. last_event_id)
  local wrong = is_wrong_type(count) and events_held or is_wrong_type(last) and last_event_id or last and not id_of(last) and last_event_id
  -- New ids come after those of the batch.
  wrong = wrong or not rise_above(tonumber(first) + count - 1) and events_held_id
  if wrong or count == 0 then
    local why = hold().quarantined_by(object .. (wrong or events_held))
    call('ZADD', P .. objects_held, 'inf', object)
    call('SET', P .. object .. events_held_id, held_id_of(first, handouts, attempts, crashes, why))
    quarantined[#quarantined + 1] = object
    quarantined[#quarantined + 1] = why
    return 'dropped'
  end
  local tag = tag_of(first, handouts + 1, tonumber(attempts), tonumber(crashes))
  local failed = enlist(slot, object)
  if failed then
    error(failed)
  end
  call('ZREM', P .. objects_held, object)
  call('RENAME', P .. object .. events_held, slot.batch)
  call('DEL', P .. object .. events_held_id)
  call('MSET', P .. object .. event_worker, slot.w, slot.tag, tag)
  again().give(slot, object, tag)
  claims = claims - 1
  if crashes ~= '0' then
    suspects().taken(tonumber(crashes))
  end
  return 'claimed'
end

-- Claims a due held object. Answers 'claimed' or 'dropped', or nil where it stays due.
local function claim_held(slot, object)
  progress = true
  if is_foreign(object) then
    call('ZREM', P .. objects_held, object)
    report_foreign(object)
    return 'dropped'
  end
  local found = call('MGET', P .. object .. event_worker, P .. object .. last_event_id, P .. object .. events_held_id)
  if not found[1] and call('EXISTS', P .. object .. event_worker) == 1 then
    hold().quarantine_held(slot, object)
    return 'dropped'
  elseif not found[1] and found[3] then
    -- The owner's key was evicted. What is held must stay ahead of what came later.
    call('SET', P .. object .. event_worker, 'held')
  elseif found[1] ~= 'held' then
    call('ZREM', P .. objects_held, object)
    return 'dropped'
  end
  if rules_next and rules().pause_held(object) then
    return 'dropped'
  elseif reply_bytes <= 0 then
    -- The look at the rules was the last that this call has room for. The object stays due.
    return nil
  end
  local first, handouts, attempts, crashes = string.match(found[3] or '', '^(%d+) (%d+) (%d+) (%d+)')
  if first and first ~= '0' then
    if crashes ~= '0' and not suspects().admits(tonumber(crashes)) then
      suspects().put_off(object)
      return 'dropped'
    end
    return claim_batch(slot, object, first, handouts, attempts, crashes)
  end
  -- Without numbers there must be no batch, for it would be passed over, and the next hold would write over it.
  if call('EXISTS', P .. object .. events_held) == 1 then
    call('ZADD', P .. objects_held, 'inf', object)
    quarantined[#quarantined + 1] = object
    quarantined[#quarantined + 1] = hold().quarantined_by(object .. events_held_id) .. ' and tells no ids'
    return 'dropped'
  end
  local got = own(slot, object, found[1], found[2], false, false)
  if got ~= 'wrong' then
    call('ZREM', P .. objects_held, object)
    call('DEL', P .. object .. events_held_id)
  end
  if got == 'empty' then
    call('DEL', P .. object .. event_worker)
    forget_later(object)
  end
  return got == 'claimed' and got or 'dropped'
end

return claim_held
