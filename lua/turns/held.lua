-- held (passing): held objects that are due.
local due, due_at, due_end = {}, 0, false

-- Returns the next due held object that this call has not quarantined; nil if there is none.
local function next_due()
  repeat
    if due_at == #due and not due_end then
      due, due_at = redis_call('ZRANGE', P .. K.objects_held, '-inf', rare.time.now_ms(), 'BYSCORE', 'LIMIT', 0, budget.claims_left), 0
      -- A second slot may also have had an object that this call has quarantined. If that slot lets
      -- the object go, the object is due again. A page with only such objects would be read again
      -- and again. So this call reads no further page; the next call does.
      due_end = true
      for _, object in ipairs(due) do
        due_end = due_end and call.excluded[object]
      end
    end
    due_at = due_end and 0 or due_at + 1
  until due_end or not call.excluded[due[due_at]]
  return due[due_at]
end

-- Claims a held object with its batch. The tag counts one more hand-out.
local function claim_batch(slot, object, last, held_id)
  local first, handouts, attempts, crashes = rare.tag.held_numbers(held_id)
  local count = redis_try('LLEN', P .. object .. K.events_held)
  last = last or redis_try('GET', P .. object .. K.last_event_id)
  local wrong = rare.quarantine.is_wrong_type(count) and K.events_held or rare.quarantine.is_wrong_type(last) and K.last_event_id
    or last and not ids.parse(last) and K.last_event_id
  -- New ids must be above the ids of this batch.
  wrong = wrong or not rare.counter.rise_above(ids.after(tonumber(first), count - 1)) and K.events_held_id
  if wrong or count == 0 then
    local what = wrong == K.last_event_id and rare.quarantine.NO_ID or wrong == K.events_held_id and rare.quarantine.NO_ROOM or nil
    local why = rare.quarantine.why_of(object .. (wrong or K.events_held), what)
    redis_call('ZADD', P .. K.objects_held, 'inf', object)
    local numbers = rare.tag.held_text(first, handouts, attempts, crashes, why)
    if not wrong then
      -- The batch is lost. After a release the object goes on with its queue.
      numbers = rare.tag.held_text('0', 0, 0, 0, why)
      redis_call('DEL', P .. object .. K.event_errors, P .. object .. K.event_key)
    end
    redis_call('SET', P .. object .. K.events_held_id, numbers)
    rare.quarantine.note(object, why)
    return 'dropped'
  end
  local list = slot.objects_key
  if slot.left and redis_call('EXISTS', list) == 1 then
    redis_call('LSET', list, '-1', object)
    slot.left = false
  else
    slot.left = false
    redis_call('LPUSH', list, object)
  end
  local tag = rare.tag.text(first, handouts + 1, attempts, crashes)
  redis_call('ZREM', P .. K.objects_held, object)
  redis_call('RENAME', P .. object .. K.events_held, slot.batch_key)
  redis_call('DEL', P .. object .. K.events_held_id)
  redis_call('SET', P .. object .. K.event_worker, slot.owner)
  call.claimed[object] = true
  if call.took then
    call.took[#call.took + 1] = object
    rare.share_limits.count(object, count - 1)
  end
  rare.again.give(slot, object, tag)
  budget.claims_left = budget.claims_left - 1
  if crashes > 0 then
    rare.room.taken(crashes)
  end
  return 'claimed'
end

-- Ends the claim of a held object without a batch. `got`: the result of `claims.claim`.
-- Returns 'claimed' or 'dropped'.
local function owned(object, got)
  if got ~= 'wrong' and got ~= 'postponed' then
    redis_call('ZREM', P .. K.objects_held, object)
  end
  if got ~= 'wrong' then
    -- An earlier hold may have left a reason, which no longer applies.
    redis_call('DEL', P .. object .. K.events_held_id)
  end
  if got == 'empty' then
    redis_call('DEL', P .. object .. K.event_worker)
    writes.expire(P .. object .. K.last_event_id)
  end
  if got ~= 'claimed' then
    return 'dropped'
  end
  call.claimed[object] = true
  return got
end

-- Claims a due held object. Returns one of these:
--   'claimed'
--   'dropped'  the object cannot be claimed now
--   nil        the object stays due
local function claim_due(slot, object)
  call.progress, call.held_changed = true, true
  if rare.names.is_foreign(object) then
    redis_call('ZREM', P .. K.objects_held, object)
    rare.quarantine.report_foreign(object)
    return 'dropped'
  end
  local found = redis_call('MGET', P .. object .. K.event_worker, P .. object .. K.last_event_id, P .. object .. K.events_held_id)
  local owner, last, held_id = found[1], found[2], found[3]
  if not owner and redis_call('EXISTS', P .. object .. K.event_worker) == 1 then
    rare.quarantine.put_held(slot, object)
    return 'dropped'
  elseif not owner and not call.claimed[object] then
    -- OBJ:event.worker was evicted. A held batch must still come before later events of the object,
    -- and without a batch no marker may lead to its events.
    redis_call('SET', P .. object .. K.event_worker, 'held')
    rare.quarantine.report_lost(object .. K.event_worker, 'mended: the owner of a held object was absent')
    owner = 'held'
  elseif owner ~= 'held' then
    redis_call('ZREM', P .. K.objects_held, object)
    return 'dropped'
  end
  if call.rules_next and rare.pauses.pause_held(object) then
    return 'dropped'
  elseif budget.bytes_left <= 0 then
    -- Reading the rules has used up the room of this call. The object stays due.
    return nil
  end
  local first, _, _, crashes = rare.tag.held_numbers(held_id or '')
  if first and first ~= '0' then
    if crashes > 0 and not rare.room.admits(crashes) then
      rare.room.put_off(object)
      return 'dropped'
    end
    return claim_batch(slot, object, last, held_id)
  end
  -- A held object without numbers must have no batch. If it has a batch, the object waits for an
  -- operator: a claim would pass over the batch, and the next hold would overwrite it.
  if redis_call('EXISTS', P .. object .. K.events_held) == 1 then
    local key, why = P .. object .. K.events_held_id, first and rare.tag.held_why(held_id) or ''
    if string.sub(why, 1, 12) ~= 'quarantine: ' then
      why = rare.quarantine.why_of(object .. K.events_held_id) .. ' and tells no ids'
    end
    redis_call('ZADD', P .. K.objects_held, 'inf', object)
    if redis_call('EXISTS', key) == 0 then
      redis_call('SET', key, rare.tag.held_text('0', 0, 0, 0, why))
    end
    rare.quarantine.note(object, why)
    return 'dropped'
  end
  return owned(object, claims.claim(slot, object, owner, last, 'held'))
end

-- Claims the next due held object. Returns 'claimed', 'dropped', or nil if none is due.
local function claim(slot)
  local object = not due_end and next_due()
  if object then
    return claim_due(slot, object)
  end
end

-- Claims a held object whose name was grouped. It may be not due any more, or paused. Returns the
-- same as `claim_due`.
local function claim_grouped(slot, object)
  local score = redis_call('ZSCORE', P .. K.objects_held, object)
  if not score or score == 'inf' or tonumber(score) > rare.time.now_ms() then
    return 'dropped'
  end
  return claim_due(slot, object)
end

return { claim = claim, claim_grouped = claim_grouped }
