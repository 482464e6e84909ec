-- object: puts the keys of one object right.
-- Uses: emits.parse emits.push emits.wrong_key ids.after ids.parse ids.text mend.again mend.doing
-- Uses: mend.leave mend.spend mend.step names.is_foreign orphan.owner rebuild.count_in_hand
-- Uses: rebuild.rise rules.fields_of tag.has_failed tag.held_numbers tag.held_text tag.held_why
-- Uses: time.now_ms

-- The most events, and about the most bytes of events, that one call moves for an object.
local EVENTS_MAX, BYTES_MAX = 1000, 1048576

-- Returns whether the hold is because of a lost key. Nothing that an operator can do brings the key
-- back, so a repair lets the object go on.
local function is_of_loss(why)
  return string.find(why, '^quarantine: .* is absent$') ~= nil
end

-- Returns the score of a held object whose due time is lost.
local function due_of(why)
  for _, word in ipairs({ '^attempts: ', '^crashes: ', '^quarantine: ', '^rejected: ' }) do
    if string.find(why, word) and not is_of_loss(why) then
      return 'inf'
    end
  end
  return M.time.now_ms()
end

-- Returns whether a rule applies to the object. A lifted rule counts: its objects are being woken.
local function has_rule(object)
  for _, value in ipairs(call('HMGET', P .. K.event_rules, unpack(M.rules.fields_of(object)))) do
    if value then
      return true
    end
  end
  return false
end

-- Moves the events of a batch without ids back to the front of the queue, the newest first. They get
-- new ids. Returns whether events are left.
local function move_back(object, batch)
  local count = call('LLEN', batch)
  for _ = 1, math.min(count, EVENTS_MAX) do
    call('LMOVE', batch, P .. object .. K.events, 'LEFT', 'RIGHT')
  end
  M.mend.spend(math.min(count, EVENTS_MAX), 0)
  return count > EVENTS_MAX
end

-- Moves the events of the object's only batch back. Handlers of its first event run again.
local function requeue(object, batch)
  call('DEL', P .. object .. K.event_handled, P .. object .. K.event_errors, P .. object .. K.event_key)
  return move_back(object, batch)
end

-- Makes events of a held batch dead letters, because events of the object with higher ids are
-- delivered or in hand. Returns whether events are left.
local function bury(object, state, why)
  local batch, bytes, id = P .. object .. K.events_held, 0, state.first
  local with_log = call('HGET', P .. K.meta, 'event.log')
  for _ = 1, EVENTS_MAX do
    local event = bytes < BYTES_MAX and call('LINDEX', batch, '-1')
    if not event then
      break
    end
    local fields = { 'id', M.ids.text(id), 'prev', '0', 'object', object, 'event', event, 'error', why, 'attempts', '0' }
    call('XADD', P .. K.events_dead, '*', unpack(fields))
    if with_log then
      call('XADD', P .. K.event_log, '*', 'status', 'dead', unpack(fields))
    end
    call('RPOP', batch)
    M.mend.spend(4, #event)
    bytes, id = bytes + #event, M.ids.after(id, 1)
  end
  if not state.in_hand then
    call('DEL', P .. object .. K.event_errors, P .. object .. K.event_key)
  end
  if call('EXISTS', batch) == 1 then
    call('SET', P .. object .. K.events_held_id, M.tag.held_text(M.ids.text(id), state.handouts, 0, 0, 'repair'))
    return true
  end
  call('DEL', P .. object .. K.events_held_id)
  return false
end

-- Lets the object of a held batch that cannot be delivered go on. `behind`: the event that came before.
local function end_batch(object, state, behind)
  local why = 'repair: a key was lost, and ' .. behind .. ' of the object came before this one'
  M.mend.step('dead', state.count .. ' events of its held batch, from id ' .. M.ids.text(state.first) .. ' on, become dead letters: ' .. behind
    .. ' came before', function()
    if bury(object, state, why) then
      M.mend.again()
    end
  end)
end

-- Pushes the emits of handlers of an event that is over, and deletes their progress. Returns whether the
-- object has no progress any more.
local function end_progress(object)
  local key = P .. object .. K.event_handled
  if call('TYPE', key).ok ~= 'hash' then
    return true
  end
  local kept = call('HGETALL', key)
  local _, emits = M.emits.parse(kept)
  if not emits then
    M.mend.leave(object .. K.event_handled .. ' cannot be read: look at it, and delete it')
    return false
  end
  local wrong, kind = M.emits.wrong_key(emits)
  if wrong then
    M.mend.leave(wrong .. ' is a ' .. kind .. ': move it away, so that emitted events can be queued')
    return false
  end
  local count, bytes = #emits / 2 + #(emits.later or {}), 0
  for _, text in ipairs(kept) do
    bytes = bytes + #text
  end
  M.mend.spend(3 * count, bytes)
  M.mend.step('progress', 'the progress of handlers without an event is deleted, and ' .. count .. ' events that they have emitted are queued', function()
    M.emits.push(emits)
    call('DEL', key)
  end)
  return true
end

-- Deletes the errors of an event that is no longer in hand or held.
local function forget_errors(object)
  M.mend.step('removed', object .. K.event_errors .. ' is of no event', function()
    call('DEL', P .. object .. K.event_errors)
  end)
end

-- Puts an object right that waits: it is held, or belongs to no slot.
local function wait(object, state)
  local base, held = P .. object, P .. K.objects_held
  local owner, score, paused, count, first, why = state.owner, state.score, state.paused, state.count, state.first, state.why
  local is_over = first > 0 and (count == 0 or first <= state.last)
  if is_over and not end_progress(object) then
    return
  end
  local due = nil
  if count > 0 and first == 0 then
    M.mend.step('requeued', count .. ' events of its batch have lost their ids: they get new ids, before all queued events', function()
      if requeue(object, base .. K.events_held) then
        M.mend.again()
      else
        call('DEL', base .. K.events_held_id)
      end
    end)
    due = M.time.now_ms()
  elseif count > 0 and first <= state.last then
    end_batch(object, state, 'event ' .. M.ids.text(state.last))
    due = M.time.now_ms()
  elseif count == 0 and first > 0 then
    M.mend.step('batch', 'its batch, from id ' .. M.ids.text(first) .. ' on, is lost: the object goes on with its queue', function()
      call('DEL', base .. K.events_held_id, base .. K.event_errors, base .. K.event_key)
    end)
    due = M.time.now_ms()
  elseif score == 'inf' and is_of_loss(why) then
    M.mend.step('held', 'no longer waits for an operator because of a lost key (' .. why .. ')', function() end)
    due = M.time.now_ms()
  end
  if owner ~= 'held' then
    M.mend.step('owner', 'is held, so its owner is `held` again', function()
      call('SET', base .. K.event_worker, 'held')
    end)
  end
  if paused and (score or not has_rule(object)) then
    M.mend.step('held', score and 'is only in objects.held, no longer in objects.paused' or 'is no longer paused, because no rule is over it', function()
      call('ZREM', P .. K.objects_paused, object)
    end)
    due, paused = due or not score and M.time.now_ms(), false
  end
  if not paused and not score then
    due = due or due_of(why)
    M.mend.step('held', due == 'inf' and 'is in objects.held again, and waits for an operator' or 'is in objects.held again, due now', function()
      call('ZADD', held, due, object)
    end)
  elseif due and not paused and M.mend.doing then
    call('ZADD', held, due, object)
  end
end

-- Puts an object right that a slot owns.
local function own(object, state, has_errors, others)
  local held = P .. object .. K.events_held
  local in_hand, tag = M.orphan.owner(object, state, others)
  if not in_hand then
    return
  end
  state.in_hand = true
  if state.score or state.paused then
    M.mend.step('held', 'is no longer in objects.held or objects.paused, because ' .. state.owner .. ' has it', function()
      call('ZREM', P .. K.objects_held, object)
      call('ZREM', P .. K.objects_paused, object)
    end)
  end
  if state.count > 0 and state.first > 0 then
    end_batch(object, state, 'a later event')
  elseif state.count > 0 then
    M.mend.step('requeued', state.count .. ' events of a held batch have lost their ids: they get new ids, before all queued events', function()
      -- Progress, errors and key belong to the event in hand.
      if move_back(object, held) then
        M.mend.again()
      end
    end)
  elseif state.first > 0 then
    M.mend.step('batch', 'its held batch, from id ' .. M.ids.text(state.first) .. ' on, is lost', function()
      call('DEL', P .. object .. K.events_held_id)
    end)
  end
  if tag then
    M.rebuild.count_in_hand(object)
  end
  if tag and has_errors and not M.tag.has_failed(tag) then
    forget_errors(object)
  end
end

-- Returns the suffixes of the object's keys, their number, and a text about a key of a wrong type.
local function keys_of(object)
  local has, own_keys, wrong = {}, 0, nil
  for _, key in ipairs(OBJECT_TYPES) do
    local found = call('TYPE', P .. object .. key[1]).ok
    if found ~= key[2] and found ~= 'none' then
      wrong = wrong or object .. key[1] .. ' is a ' .. found .. ', it should be a ' .. key[2] .. ': move it away'
    elseif found ~= 'none' then
      has[key[1]], own_keys = true, own_keys + 1
    end
  end
  return has, own_keys, wrong
end

-- Gives an object with events a marker. `own_keys`: the number of its keys.
local function mark(object, own_keys, others)
  local count = call('LLEN', P .. object .. K.events)
  if P == '' and own_keys == 1 and not others.all_lists then
    return M.mend.leave(object .. K.events .. ' has ' .. count .. ' entries and no marker, but no other key shows that it is a queue of seriatim: '
      .. '--all-lists makes it one')
  end
  M.mend.step('marker', 'has ' .. count .. ' events queued: it gets a marker', function()
    call('LPUSH', P .. K.objects_with_events, object)
  end)
end

-- Puts one object right. `hint`: as for lua/check.lua.
local function mend_object(subject, others)
  local object = subject.name
  if M.names.is_foreign(object) then
    return
  end
  local base = P .. object
  local has, own_keys, wrong = keys_of(object)
  if wrong then
    -- Without a namespace, a key of another program may also end in `:events`.
    return (P ~= '' or own_keys > 0) and M.mend.leave(wrong) or nil
  end
  local numbers = has[K.events_held_id] and call('GET', base .. K.events_held_id) or ''
  local first, handouts = M.tag.held_numbers(numbers)
  local state = {
    owner = call('GET', base .. K.event_worker), score = call('ZSCORE', P .. K.objects_held, object),
    paused = call('ZSCORE', P .. K.objects_paused, object), count = call('LLEN', base .. K.events_held),
    first = first and M.ids.parse(first) or 0, handouts = handouts or 0, why = M.tag.held_why(numbers) or '',
    last = M.ids.parse(call('GET', base .. K.last_event_id) or '') or 0,
  }
  M.rebuild.rise(state.last, 'the last id of the object')
  if state.first > 0 then
    M.rebuild.rise(M.ids.after(state.first, math.max(state.count - 1, 0)), 'the held batch of the object')
  end
  if state.owner and state.owner ~= 'held' then
    return own(object, state, has[K.event_errors], others)
  end
  if call('ZSCORE', P .. K.objects_in_hand, object .. ':') then
    M.mend.step('share', 'no longer counts as in hand, because no slot owns it', function()
      call('ZREM', P .. K.objects_in_hand, object .. ':')
    end)
  end
  local is_waiting = state.owner or state.count > 0 or state.score or state.paused or state.first > 0
  if is_waiting and state.score and not state.owner and state.count + state.first == 0 and not has[K.events] then
    M.mend.step('held', 'is no longer in objects.held, because it has no events', function()
      call('ZREM', P .. K.objects_held, object)
    end)
  elseif is_waiting then
    wait(object, state)
  end
  if has[K.event_errors] and not (is_waiting and M.tag.has_failed(numbers)) then
    forget_errors(object)
  end
  if is_waiting then
    return
  end
  end_progress(object)
  if has[K.events] and subject.hint == 'searched' then
    mark(object, own_keys, others)
  end
end

return { mend = mend_object, requeue = requeue, end_progress = end_progress }
