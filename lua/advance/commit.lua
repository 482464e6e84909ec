-- commit: what became of the batches in flight; and go on, with more of the same objects.

-- All of the batch is delivered. Answers whether the slot goes on with its object.
local function commit_all(slot, object, last)
  -- Batch and tag go together: if the call fails further on, the slot is one that has nothing yet.
  delete_later(slot.batch)
  slot.untagged = true
  set_later(P .. object .. last_event_id, last)
  if slot.handled then
    emits().finish(slot, object)
  end
  -- A tag that tells attempts is longer than the last id of its batch: 4 bytes more than the first id, which is at most 999 before.
  local tag = args[slot.arg + 1]
  if #tag > #last and has_failed(tag) then
    delete_later(P .. object .. event_errors)
  end
  if slot.result == 'yield' and call('EXISTS', P .. object .. events) == 1 then
    hold().now(slot, object)
    return false
  end
  slot.prev = last
  return true
end

-- Takes in the results. Answers the slots that go on with their objects.
local function commit(slots, tags)
  local going_on, n_going_on = {}, 0
  for n, slot in ipairs(slots) do
    local tag = tags[n]
    if tag and slot.result ~= 'free' and args[slot.arg + 1] == tag then
      local object, last = args[slot.arg], args[slot.arg + 2]
      local all = slot.result == 'done' or slot.result == 'yield'
      local ready = not slot.handled or emits().read(slot, object)
      local logged = ready and (not log_on or log().result(slot, object))
      progress = true
      if logged and (all and commit_all(slot, object, last) or not all and partly()(slot, object, last)) then
        n_going_on = n_going_on + 1
        going_on[n_going_on] = slot
      end
    elseif tag then
      again().give_unknown(slot, tag)
    end
  end
  if log_on then
    log().trim()
  end
  return going_on
end

local function go_on_with_more(slot, object)
  if rules_next and rules().pause(slot, object, nil, true) then
    return
  end
  local entry, wrong = take_first(slot, object)
  if entry then
    give(slot, slot.prev, take_more(slot, entry))
  elseif wrong then
    hold().quarantine(slot, object, wrong)
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
    if not some_left then
      leave(slot, object)
    elseif reply_bytes <= 0 then
      hold().now(slot, object)
    else
      go_on_with_more(slot, object)
    end
  end
  write_down()
end
