-- object: puts the keys of one object right.
-- Uses: emits.parse emits.push emits.wrong_key ids.after ids.parse ids.text mend.again mend.doing
-- Uses: mend.leave mend.step names.is_foreign orphan.owner rebuild.count_in_hand rebuild.rise
-- Uses: rules.fields_of tag.has_failed tag.held_numbers tag.held_text tag.held_why time.now_ms

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
local function requeue(object, batch)
  local count = call('LLEN', batch)
  for _ = 1, math.min(count, EVENTS_MAX) do
    call('LMOVE', batch, P .. object .. K.events, 'LEFT', 'RIGHT')
  end
  call('DEL', P .. object .. K.event_handled, P .. object .. K.event_errors, P .. object .. K.event_key)
  return count > EVENTS_MAX
end

-- Makes events of a held batch dead letters, because events of the object with higher ids are
-- delivered or in hand. Returns whether events are left.
local function bury(object, first, handouts, why)
  local batch, bytes, id = P .. object .. K.events_held, 0, first
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
    bytes, id = bytes + #event, M.ids.after(id, 1)
  end
  call('DEL', P .. object .. K.event_errors, P .. object .. K.event_key)
  if call('EXISTS', batch) == 1 then
    call('SET', P .. object .. K.events_held_id, M.tag.held_text(M.ids.text(id), handouts, 0, 0, 'repair'))
    return true
  end
  call('DEL', P .. object .. K.events_held_id)
  return false
end

-- Lets the object of a held batch that cannot be delivered go on. Returns whether the object needs
-- another call.
local function end_batch(object, first, handouts, count, behind)
  local why = 'repair: a key was lost, and event ' .. behind .. ' of the object came before this one'
  local more = false
  M.mend.step('dead', count .. ' events of its held batch, from id ' .. M.ids.text(first) .. ' on, become dead letters: event ' .. behind
    .. ' was delivered before', function()
    more = bury(object, first, handouts, why)
  end)
  return more
end

-- Pushes what handlers of an ended event have emitted, and deletes their progress.
local function end_progress(object)
  local key = P .. object .. K.event_handled
  local _, emits = M.emits.parse(call('HGETALL', key))
  if not emits then
    return M.mend.leave(object .. K.event_handled .. ' cannot be read: look at it, and delete it')
  end
  local wrong, kind = M.emits.wrong_key(emits)
  if wrong then
    return M.mend.leave(wrong .. ' is a ' .. kind .. ': move it away, so that emitted events can be queued')
  end
  local count = #emits / 2 + #(emits.later or {})
  M.mend.step('progress', 'the progress of handlers without an event is deleted, and ' .. count .. ' events that they have emitted are queued', function()
    M.emits.push(emits)
    call('DEL', key)
  end)
end

-- Puts an object right that waits: it is held, or belongs to no slot.
local function wait(object, state)
  local base, held = P .. object, P .. K.objects_held
  local owner, score, paused, count, first, why = state.owner, state.score, state.paused, state.count, state.first, state.why
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
    if end_batch(object, first, state.handouts, count, M.ids.text(state.last)) then
      M.mend.again()
    end
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

-- Puts one object right. `hint`: as for lua/check.lua.
local function mend_object(subject, others)
  local object = subject.name
  if M.names.is_foreign(object) then
    return
  end
  local base, has, own = P .. object, {}, 0
  for _, key in ipairs(OBJECT_TYPES) do
    local found = call('TYPE', base .. key[1]).ok
    if found ~= key[2] and found ~= 'none' then
      has.wrong = has.wrong or object .. key[1] .. ' is a ' .. found .. ', it should be a ' .. key[2] .. ': move it away'
    elseif found ~= 'none' then
      has[key[1]], own = true, own + 1
    end
  end
  if has.wrong then
    -- Without a namespace, a key of another program may also end in `:events`.
    return (P ~= '' or own > 0) and M.mend.leave(has.wrong) or nil
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
    local in_hand, tag = M.orphan.owner(object, state, others)
    if not in_hand then
      return
    end
    if state.score or state.paused then
      M.mend.step('held', 'is no longer in objects.held or objects.paused, because ' .. state.owner .. ' has it', function()
        call('ZREM', P .. K.objects_held, object)
        call('ZREM', P .. K.objects_paused, object)
      end)
    end
    if state.count > 0 and state.first > 0 then
      if end_batch(object, state.first, state.handouts, state.count, 'a later one') then
        M.mend.again()
      end
    elseif state.count > 0 then
      M.mend.step('requeued', state.count .. ' events of a held batch have lost their ids: they get new ids, before all queued events', function()
        if requeue(object, base .. K.events_held) then
          M.mend.again()
        end
      end)
    end
    if tag then
      M.rebuild.count_in_hand(object)
    end
    if tag and has[K.event_errors] and not M.tag.has_failed(tag) then
      M.mend.step('removed', object .. K.event_errors .. ' is of no event', function()
        call('DEL', base .. K.event_errors)
      end)
    end
    return
  end
  if state.owner or state.count > 0 or state.score or state.paused or state.first > 0 then
    if state.score and not state.owner and state.count + state.first == 0 and not has[K.events] then
      M.mend.step('held', 'is no longer in objects.held, because it has no events', function()
        call('ZREM', P .. K.objects_held, object)
      end)
    else
      wait(object, state)
    end
    if has[K.event_errors] and not M.tag.has_failed(numbers) then
      M.mend.step('removed', object .. K.event_errors .. ' is of no event', function()
        call('DEL', base .. K.event_errors)
      end)
    end
    return
  end
  if has[K.event_errors] then
    M.mend.step('removed', object .. K.event_errors .. ' is of no event', function()
      call('DEL', base .. K.event_errors)
    end)
  end
  if has[K.event_handled] then
    end_progress(object)
  end
  if has[K.events] and subject.hint == 'searched' then
    local count = call('LLEN', base .. K.events)
    if P == '' and own == 1 and not others.all_lists then
      return M.mend.leave(object .. K.events .. ' has ' .. count .. ' entries and no marker, but no other key shows that it is a queue of seriatim: '
        .. '--all-lists makes it one')
    end
    M.mend.step('marker', 'has ' .. count .. ' events queued: it gets a marker', function()
      call('LPUSH', P .. K.objects_with_events, object)
    end)
  end
end

return { mend = mend_object, requeue = requeue }
