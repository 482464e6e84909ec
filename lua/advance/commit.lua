-- commit: what became of the batches in flight; and go on, with more of the same objects.

-- All of the batch is delivered. Answers whether the slot goes on with its object.
local function commit_all(slot, object, last)
  -- Batch and tag go together: if the call fails further on, the slot is one that has nothing yet.
  delete_later(slot.batch)
  slot.untagged = true
  set_later(P .. object .. last_event_id, last)
  if slot.handled then
    end_handled(slot, object)
  end
  if has_failed(args[slot.arg + 1]) then
    delete_later(P .. object .. event_errors)
  end
  if slot.result == 'yield' and call('EXISTS', P .. object .. events) == 1 then
    hold_now(slot, object)
    return false
  end
  slot.prev = last
  return true
end

-- Writes the event behind the first `count` of the batch to the dead letters, or to the log where it is completed with errors. Answers the error
-- where that cannot be done.
local function bury(slot, object, prev, count, id, why, attempts)
  local event = call('LINDEX', slot.batch, -1 - count)
  local fields = { 'id', id, 'prev', prev, 'object', object, 'event', event, 'error', why, 'attempts', attempts }
  local status, kept = 'dead', nil
  if slot.result == 'complete' then
    status = 'completed_with_errors'
    kept = not log_keep and try('XADD', P .. event_log, 'MAXLEN', '~', '1000', '*', 'status', status, unpack(fields))
  else
    kept = try('XADD', P .. events_dead, '*', unpack(fields))
  end
  local failed = type(kept) == 'table' and kept.err or nil
  if log_keep and not failed then
    log_row(slot, status, object, id, prev, event, why, attempts)
  end
  return failed
end

-- A part of the batch is delivered. Answers whether the slot goes on with its object because nothing of the batch remains.
local function commit_part(slot, object, last)
  local result, count, rest = slot.result, tonumber(args[slot.arg + 3]), args[slot.arg + 4]
  local tag, held_id, error_kept = args[slot.arg + 1], args[slot.arg + 5], nil
  local prev = last ~= '' and last or last_of(object)
  -- The last event that is over.
  local over = id_of(last) or 0
  if result == 'reject' or result == 'complete' then
    local id, why = args[slot.arg + 5], args[slot.arg + 6]
    local failed = bury(slot, object, prev, count, id, why, args[slot.arg + 7])
    if failed then
      -- The event stays where it is, held, rather than be lost. Its hand-outs are kept: no tag may come twice.
      local _, handouts, _, crashes = numbers(tag)
      local held_why = format('quarantine: %s: %s', result == 'complete' and event_log or events_dead, failed)
      result, rest, held_id = 'hold', 'inf', held_id_of(id, handouts, tonumber(args[slot.arg + 7]), crashes, held_why)
      error_kept = why
    else
      count, over = count + 1, id_of(id)
    end
  end
  if count > 0 then
    call('LTRIM', slot.batch, 0, -1 - count)
  end
  if last ~= '' then
    call('SET', P .. object .. last_event_id, last)
  end
  if slot.handled then
    end_handled(slot, object, over)
  end
  if count > 0 and has_failed(tag) then
    call('DEL', P .. object .. event_errors)
  end
  if result == 'hold' then
    hold_batch(at_of(slot), object, rest == 'inf' and rest or now_ms + tonumber(rest), held_id)
    keep_error(object, tag, count, held_id, error_kept)
    return false
  elseif rest == '' then
    call('DEL', slot.tag)
    slot.prev = prev
    return true
  end
  call('SET', slot.tag, rest)
  give_again(slot, object, rest)
  return false
end

-- Takes in the results. Answers the slots that go on with their objects.
local function commit(slots, tags)
  local going_on, n_going_on = {}, 0
  for n, slot in ipairs(slots) do
    local tag = tags[n]
    if tag and slot.result ~= 'free' and args[slot.arg + 1] == tag then
      local object, last = args[slot.arg], args[slot.arg + 2]
      local all = slot.result == 'done' or slot.result == 'yield'
      local ready = not slot.handled or read_handled(slot, object)
      local logged = ready and (not log_keep or log_result(slot, object))
      progress = true
      if logged and (all and commit_all(slot, object, last) or not all and commit_part(slot, object, last)) then
        n_going_on = n_going_on + 1
        going_on[n_going_on] = slot
      end
    elseif tag then
      give_unknown(slot, tag)
    end
  end
  trim_log()
  return going_on
end

local function go_on_with_more(slot, object)
  if rules_next and pause_ruled(slot, object, nil, true) then
    return
  end
  local entry, wrong = take(slot, object)
  if entry then
    give(slot, slot.prev, entry)
  elseif wrong then
    quarantine(slot, object, wrong)
  else
    leave(slot, object)
  end
end

-- The slots take more of their objects, or release them where there is no more.
local function go_on(slots)
  local queues = {}
  for n, slot in ipairs(slots) do
    queues[n] = P .. args[slot.arg] .. events
  end
  -- One look tells whether all of them have come to their end, as is the rule where objects have few events each.
  local some_left = #queues > 0 and call('EXISTS', unpack(queues)) > 0
  if some_left then
    write_down()
  end
  for _, slot in ipairs(slots) do
    local object = args[slot.arg]
    if reply_bytes <= 0 then
      hold_now(slot, object)
    elseif some_left then
      go_on_with_more(slot, object)
    else
      leave(slot, object)
    end
  end
  write_down()
end
