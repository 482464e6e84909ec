-- object: puts the keys of one object right.

-- The most events, and about the most bytes of events, that one call moves for an object.
local EVENTS_MAX, BYTES_MAX = 1000, 1048576

-- Returns whether the hold is because of a lost key, or of a last id that was no id. Nothing that an
-- operator can do brings the key back, so a repair lets the object go on.
local function is_of_loss(why)
  return string.find(why, '^quarantine: .* is absent$') ~= nil or string.find(why, '^quarantine: .* is no id$') ~= nil
end

-- Returns the score of a held object whose due time is lost.
local function due_of(why)
  for _, word in ipairs({ '^attempts: ', '^crashes: ', '^quarantine: ', '^rejected: ' }) do
    if string.find(why, word) and not is_of_loss(why) then
      return 'inf'
    end
  end
  return rare.time.now_ms()
end

-- Returns whether a rule applies to the object. A lifted rule counts: its objects are being woken.
local function has_rule(object)
  for _, value in ipairs(redis_call('HMGET', P .. K.event_rules, unpack(rare.rules.fields_of(object)))) do
    if value then
      return true
    end
  end
  return false
end

-- Makes events of a held batch dead letters, up to the id `to`, because events of the object with
-- higher ids are delivered or in hand. Returns whether such events are left.
local function bury(object, state, why, to)
  local batch, bytes, id = P .. object .. K.events_held, 0, state.first
  local with_log = redis_call('HGET', P .. K.meta, 'event.log')
  for _ = 1, EVENTS_MAX do
    local event = id <= to and bytes < BYTES_MAX and redis_call('LINDEX', batch, '-1')
    if not event then
      break
    end
    local fields = { 'id', ids.text(id), 'prev', '0', 'object', object, 'event', event, 'error', why, 'attempts', '0' }
    redis_call('XADD', P .. K.events_dead, '*', unpack(fields))
    if with_log then
      redis_call('XADD', P .. K.event_log, '*', 'status', 'dead', unpack(fields))
    end
    rare.ends.of_event(object, 'dead', ids.text(id), why, '0', nil)
    redis_call('RPOP', batch)
    rare.mend.spend(4, #event)
    bytes, id = bytes + #event, ids.after(id, 1)
  end
  if not state.in_hand then
    redis_call('DEL', P .. object .. K.event_errors, P .. object .. K.event_key)
  end
  if redis_call('EXISTS', batch) == 1 then
    redis_call('SET', P .. object .. K.events_held_id, rare.tag.held_text(ids.text(id), state.handouts, 0, 0, 'repair'))
    return id <= to
  end
  redis_call('DEL', P .. object .. K.events_held_id)
  return false
end

-- Lets the object go on whose held batch has events up to the id `to` that cannot be delivered.
-- `behind`: the event that came before.
local function end_batch(object, state, behind, to)
  local why = 'repair: a key was lost, and ' .. behind .. ' of the object came before this one'
  local count = math.min(state.count, to - state.first + 1)
  rare.mend.step('dead', count .. ' events of its held batch, from id ' .. ids.text(state.first) .. ' on, become dead letters: ' .. behind
    .. ' came before', function()
    if bury(object, state, why, to) then
      rare.mend.again()
    end
  end)
end

-- Deletes the errors of an event that is no longer in hand or held.
local function forget_errors(object)
  rare.mend.step('removed', object .. K.event_errors .. ' is of no event', function()
    redis_call('DEL', P .. object .. K.event_errors)
  end)
end

-- Puts an object right that waits: it is held, or belongs to no slot. `is_searched`: no list of a group
-- has its name.
local function wait(object, state, is_searched)
  local base, held = P .. object, P .. K.objects_held
  local owner, score, paused, count, first, why = state.owner, state.score, state.paused, state.count, state.first, state.why
  local is_over = first > 0 and (count == 0 or first <= state.last)
  if is_over and not rare.unfinished.end_progress(object) then
    return
  end
  local due = nil
  if count > 0 and first == 0 then
    rare.mend.step('requeued', count .. ' events of its batch have lost their ids: they get new ids, before all queued events', function()
      if rare.unfinished.requeue(object, base .. K.events_held) then
        rare.mend.again()
      else
        redis_call('DEL', base .. K.events_held_id)
      end
    end)
    due = rare.time.now_ms()
  elseif count > 0 and first <= state.last then
    end_batch(object, state, 'event ' .. ids.text(state.last), state.last)
    due = rare.time.now_ms()
  elseif count == 0 and first > 0 then
    rare.mend.step('batch', 'its batch, from id ' .. ids.text(first) .. ' on, is lost: the object goes on with its queue', function()
      redis_call('DEL', base .. K.events_held_id, base .. K.event_errors, base .. K.event_key)
    end)
    due = rare.time.now_ms()
  elseif score == 'inf' and is_of_loss(why) then
    rare.mend.step('held', 'no longer waits for an operator because of a lost key (' .. why .. ')', function() end)
    due = rare.time.now_ms()
  end
  if not due and is_searched and score and tonumber(score) < 0 and redis_call('EXISTS', P .. K.event_groups_waiting) == 1 then
    rare.mend.step('held', 'is due again, because its name was grouped, but no list of a group has it', function() end)
    due = string.sub(score, 2)
  end
  if owner ~= 'held' then
    rare.mend.step('owner', 'is held, so its owner is `held` again', function()
      redis_call('SET', base .. K.event_worker, 'held')
    end)
  end
  if paused and (score or not has_rule(object)) then
    rare.mend.step('held', score and 'is only in objects.held, no longer in objects.paused' or 'is no longer paused, because no rule is over it', function()
      redis_call('ZREM', P .. K.objects_paused, object)
    end)
    due, paused = due or not score and rare.time.now_ms(), false
  end
  if not paused and not score then
    due = due or due_of(why)
    rare.mend.step('held', due == 'inf' and 'is in objects.held again, and waits for an operator' or 'is in objects.held again, due now', function()
      redis_call('ZADD', held, due, object)
    end)
  elseif due and not paused and rare.mend.doing then
    redis_call('ZADD', held, due, object)
  end
end

-- Puts an object right that a slot owns.
local function own(object, state, has_errors, others)
  local held = P .. object .. K.events_held
  local in_hand, tag = rare.orphan.owner(object, state, others)
  if not in_hand then
    return
  end
  state.in_hand = true
  if state.score or state.paused then
    rare.mend.step('held', 'is no longer in objects.held or objects.paused, because ' .. state.owner .. ' has it', function()
      redis_call('ZREM', P .. K.objects_held, object)
      redis_call('ZREM', P .. K.objects_paused, object)
    end)
  end
  if state.count > 0 and state.first > 0 then
    end_batch(object, state, 'a later event', ids.MAX)
  elseif state.count > 0 then
    rare.mend.step('requeued', state.count .. ' events of a held batch have lost their ids: they get new ids, before all queued events', function()
      -- Progress, errors and key belong to the event in hand.
      if rare.unfinished.move_back(object, held) then
        rare.mend.again()
      end
    end)
  elseif state.first > 0 then
    rare.mend.step('batch', 'its held batch, from id ' .. ids.text(state.first) .. ' on, is lost', function()
      redis_call('DEL', P .. object .. K.events_held_id)
    end)
  end
  if tag then
    rare.rebuild.count_in_hand(object)
  end
  if tag and has_errors and not rare.tag.has_failed(tag) then
    forget_errors(object)
  end
end

-- Returns the suffixes of the object's keys, their number, and a text about a key of a wrong type.
local function keys_of(object)
  local has, own_keys, wrong = {}, 0, nil
  for _, key in ipairs(OBJECT_TYPES) do
    local found = redis_call('TYPE', P .. object .. key[1]).ok
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
  local count = redis_call('LLEN', P .. object .. K.events)
  if P == '' and own_keys == 1 and not others.all_lists then
    return rare.mend.leave(object .. K.events .. ' has ' .. count .. ' entries and no marker, but no other key shows that it is a queue of seriatim: '
      .. '--all-lists makes it one')
  end
  rare.mend.step('marker', 'has ' .. count .. ' events queued: it gets a marker', function()
    redis_call('LPUSH', P .. K.objects_with_events, object)
  end)
end

-- Puts one object right. `hint`: as for lua/check.lua.
local function mend_object(subject, others)
  local object = subject.name
  if rare.names.is_foreign(object) then
    return
  end
  local base = P .. object
  local has, own_keys, wrong = keys_of(object)
  if wrong then
    -- Without a namespace, a key of another program may also end in `:events`.
    return (P ~= '' or own_keys > 0) and rare.mend.leave(wrong) or nil
  end
  local numbers = has[K.events_held_id] and redis_call('GET', base .. K.events_held_id) or ''
  local first, handouts = rare.tag.held_numbers(numbers)
  local state = {
    owner = redis_call('GET', base .. K.event_worker), score = redis_call('ZSCORE', P .. K.objects_held, object),
    paused = redis_call('ZSCORE', P .. K.objects_paused, object), count = redis_call('LLEN', base .. K.events_held),
    first = first and ids.parse(first) or 0, handouts = handouts or 0, why = rare.tag.held_why(numbers) or '',
    last = ids.parse(redis_call('GET', base .. K.last_event_id) or '') or 0,
  }
  if has[K.last_event_id] and not ids.parse(redis_call('GET', base .. K.last_event_id)) then
    rare.mend.step('removed', object .. K.last_event_id .. ' is no id: the next event has the prev 0', function()
      redis_call('DEL', base .. K.last_event_id)
    end)
  end
  rare.rebuild.rise(state.last, 'the last id of the object')
  if state.first > 0 then
    rare.rebuild.rise(ids.after(state.first, math.max(state.count - 1, 0)), 'the held batch of the object')
  end
  if state.owner and state.owner ~= 'held' then
    return own(object, state, has[K.event_errors], others)
  end
  if redis_call('ZSCORE', P .. K.objects_in_hand, object .. ':') then
    rare.mend.step('share', 'no longer counts as in hand, because no slot owns it', function()
      redis_call('ZREM', P .. K.objects_in_hand, object .. ':')
    end)
  end
  local is_waiting = state.owner or state.count > 0 or state.score or state.paused or state.first > 0
  if is_waiting and state.score and not state.owner and state.count + state.first == 0 and not has[K.events] then
    rare.mend.step('held', 'is no longer in objects.held, because it has no events', function()
      redis_call('ZREM', P .. K.objects_held, object)
    end)
  elseif is_waiting then
    wait(object, state, subject.hint == 'searched')
  end
  if has[K.event_errors] and not (is_waiting and rare.tag.has_failed(numbers)) then
    forget_errors(object)
  end
  if is_waiting then
    return
  end
  rare.unfinished.end_progress(object)
  if has[K.events] and subject.hint == 'searched' then
    mark(object, own_keys, others)
  end
end

return { mend = mend_object }
