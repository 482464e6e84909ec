-- held: held objects that are due.
-- Uses: again.give again.rise_above aside.is_wrong_type aside.note aside.put_held
-- Uses: aside.report_foreign aside.why_of ids.after ids.parse limits.count missing.tell
-- Uses: names.is_foreign pauses.pause_held
-- Uses: room.admits room.put_off room.taken tag.held_numbers tag.held_text tag.text time.now_ms
local due, due_at, due_end = {}, 0, false

-- Returns the next due held object that this call has not put aside; nil if there is none.
local function next_due()
  repeat
    if due_at == #due and not due_end then
      due, due_at = call('ZRANGE', P .. K.objects_held, '-inf', M.time.now_ms(), 'BYSCORE', 'LIMIT', 0, C.claims_left), 0
      -- A second slot may also have had an object that this call has put aside. If that slot lets
      -- the object go, the object is due again. A page with only such objects would be read again
      -- and again. So this call reads no further page; the next call does.
      due_end = true
      for _, object in ipairs(due) do
        due_end = due_end and C.put_aside[object]
      end
    end
    due_at = due_end and 0 or due_at + 1
  until due_end or not C.put_aside[due[due_at]]
  return due[due_at]
end

-- Claims a held object with its batch. The tag counts one more hand-out.
local function claim_batch(i, object, last, held_id)
  local first, handouts, attempts, crashes = M.tag.held_numbers(held_id)
  local count = try('LLEN', P .. object .. K.events_held)
  last = last or try('GET', P .. object .. K.last_event_id)
  local wrong = M.aside.is_wrong_type(count) and K.events_held or M.aside.is_wrong_type(last) and K.last_event_id
    or last and not M.ids.parse(last) and K.last_event_id
  -- New ids must be above the ids of this batch.
  wrong = wrong or not M.again.rise_above(M.ids.after(tonumber(first), count - 1)) and K.events_held_id
  if wrong or count == 0 then
    local why = M.aside.why_of(object .. (wrong or K.events_held))
    call('ZADD', P .. K.objects_held, 'inf', object)
    local numbers = M.tag.held_text(first, handouts, attempts, crashes, why)
    if not wrong then
      -- The batch is lost. After a release the object goes on with its queue.
      numbers = M.tag.held_text('0', 0, 0, 0, why)
      call('DEL', P .. object .. K.event_errors, P .. object .. K.event_key)
    end
    call('SET', P .. object .. K.events_held_id, numbers)
    M.aside.note(object, why)
    return 'dropped'
  end
  local list = C.base[i] .. K.worker_object
  if C.left[i] and call('EXISTS', list) == 1 then
    call('LSET', list, '-1', object)
    C.left[i] = nil
  else
    C.left[i] = nil
    call('LPUSH', list, object)
  end
  local tag = M.tag.text(first, handouts + 1, attempts, crashes)
  call('ZREM', P .. K.objects_held, object)
  call('RENAME', P .. object .. K.events_held, C.base[i] .. K.worker_event)
  call('DEL', P .. object .. K.events_held_id)
  call('MSET', P .. object .. K.event_worker, C.name .. '.' .. C.number[i], C.base[i] .. K.worker_event_id, tag)
  C.claimed[object] = i
  if C.took then
    C.took[#C.took + 1] = object
    M.limits.count(object, count - 1)
  end
  M.again.give(i, object, tag)
  C.claims_left = C.claims_left - 1
  if crashes > 0 then
    M.room.taken(crashes)
  end
  return 'claimed'
end

-- Claims a due held object. Returns one of these:
--   'claimed'
--   'dropped'  the object cannot be claimed now
--   nil        the object stays due
--   'own', object, owner, last id
--              the object has no batch: the caller claims it by `own`, and then calls `owned`
local function claim_due(i, object)
  C.progress, C.held_changed = true, true
  if M.names.is_foreign(object) then
    call('ZREM', P .. K.objects_held, object)
    M.aside.report_foreign(object)
    return 'dropped'
  end
  local found = call('MGET', P .. object .. K.event_worker, P .. object .. K.last_event_id, P .. object .. K.events_held_id)
  local owner, last, held_id = found[1], found[2], found[3]
  if not owner and call('EXISTS', P .. object .. K.event_worker) == 1 then
    M.aside.put_held(i, object)
    return 'dropped'
  elseif not owner and not C.claimed[object] then
    -- OBJ:event.worker was evicted. A held batch must still come before later events of the object,
    -- and without a batch no marker may lead to its events.
    call('SET', P .. object .. K.event_worker, 'held')
    M.missing.tell(object .. K.event_worker, 'mended: the owner of a held object was absent')
    owner = 'held'
  elseif owner ~= 'held' then
    call('ZREM', P .. K.objects_held, object)
    return 'dropped'
  end
  if C.rules_next and M.pauses.pause_held(object) then
    return 'dropped'
  elseif C.bytes_left <= 0 then
    -- Reading the rules has used up the room of this call. The object stays due.
    return nil
  end
  local first, _, _, crashes = M.tag.held_numbers(held_id or '')
  if first and first ~= '0' then
    if crashes > 0 and not M.room.admits(crashes) then
      M.room.put_off(object)
      return 'dropped'
    end
    return claim_batch(i, object, last, held_id)
  end
  -- A held object without numbers must have no batch. If it has a batch, the object waits for an
  -- operator: a claim would pass over the batch, and the next hold would overwrite it.
  if call('EXISTS', P .. object .. K.events_held) == 1 then
    call('ZADD', P .. K.objects_held, 'inf', object)
    M.aside.note(object, M.aside.why_of(object .. K.events_held_id) .. ' and tells no ids')
    return 'dropped'
  end
  return 'own', object, owner, last
end

-- Claims the next due held object. Returns the same as `claim_due`, or nil if no object is due.
local function claim(i)
  local object = not due_end and next_due()
  if object then
    return claim_due(i, object)
  end
end

-- Claims a held object whose name was set aside. It may be not due any more, or paused. Returns the
-- same as `claim_due`.
local function claim_aside(i, object)
  local score = call('ZSCORE', P .. K.objects_held, object)
  if not score or score == 'inf' or tonumber(score) > M.time.now_ms() then
    return 'dropped'
  end
  return claim_due(i, object)
end

-- Ends the claim of a held object without a batch. `got`: the result of `own`.
local function owned(object, got)
  if got ~= 'wrong' and got ~= 'postponed' then
    call('ZREM', P .. K.objects_held, object)
  end
  if got ~= 'wrong' then
    -- An earlier hold may have left a reason, which no longer applies.
    call('DEL', P .. object .. K.events_held_id)
  end
  if got == 'empty' then
    call('DEL', P .. object .. K.event_worker)
    C.to_expire[#C.to_expire + 1] = C.forgets and P .. object .. K.last_event_id or nil
  end
  return got == 'claimed' and got or 'dropped'
end

return { claim = claim, claim_aside = claim_aside, owned = owned }
