-- orphan: objects whose owner, or batches whose object, cannot be found by any worker process.

local NAMES_MAX, SLOTS_MAX = 1000, 65536

-- Returns the beginning of the keys of a worker.
local function at_of(worker)
  return P .. K.WORKER .. worker
end

local function type_of(key)
  return redis_call('TYPE', key).ok
end

-- Returns whether the worker is a slot of a registered name, and whether a process may still have it:
-- its name has a lease, and either has this slot, or its registration is lost or invalid.
local function standing(worker)
  local name, slot = rare.worker.parse(worker)
  if not name then
    return false, redis_call('EXISTS', at_of(worker) .. K.worker_lease) == 1
  end
  local slots = rare.registry.parse(redis_call('HGET', P .. K.event_workers, name) or '')
  local is_valid = slots >= 1 and slots <= SLOTS_MAX
  local is_registered = is_valid and slot < slots
  return is_registered, (is_registered or not is_valid) and redis_call('EXISTS', at_of(name) .. K.worker_lease) == 1
end

-- Returns the names in the worker's list, and those of them that it owns.
local function names_of(worker)
  local names, owned, seen = redis_call('LRANGE', at_of(worker) .. K.worker_object, 0, NAMES_MAX - 1), {}, {}
  for _, name in ipairs(names) do
    if not seen[name] and not rare.names.is_foreign(name) and redis_call('MGET', P .. name .. K.event_worker)[1] == worker then
      owned[#owned + 1] = name
    end
    seen[name] = true
  end
  rare.mend.spend(#names, 0)
  return names, owned, seen
end

-- Returns the first key of the worker with a wrong type, and its type; nil if there is none.
local function wrong_key(worker)
  local at = at_of(worker)
  for _, key in ipairs({ { K.worker_object, 'list' }, { K.worker_event, 'list' }, { K.worker_event_id, 'string' }, { K.worker_lost, 'list' } }) do
    local found = type_of(at .. key[1])
    if found ~= key[2] and found ~= 'none' then
      return K.WORKER .. worker .. key[1] .. ' is a ' .. found .. ', it should be a ' .. key[2] .. ': move it away'
    end
  end
end

-- Returns the tag of the worker's batch, '' if there is none, and the object that it names.
local function tag_of(worker)
  local value = redis_call('GET', at_of(worker) .. K.worker_event_id) or ''
  local tag = rare.tag.split(value)
  return tag, (rare.lost.named(value))
end

-- Returns whether the batch of the worker may be that of the object. `named`: the object that the tag
-- names. `owned`: the objects that the worker owns by its list. `is_listed`: whether the object is in
-- that list.
local function may_have(object, named, owned, is_listed)
  return named == object or not named and (is_listed or #owned == 0)
end

-- Gives an object the batch back that its worker has put away, because the name of the object was
-- lost from the worker's list. The events keep their ids if their tag is known. Returns whether there
-- is such a batch.
local function give_lost(object, worker)
  local key, base = at_of(worker) .. K.worker_lost, P .. object
  if redis_call('LLEN', key) < 2 or redis_call('EXISTS', base .. K.events_held) == 1 then
    return false
  end
  local value = redis_call('LINDEX', key, '0')
  local tag, name = rare.tag.split(value)
  if name and name ~= object then
    return false
  end
  local first, handouts, attempts, crashes = rare.tag.numbers(tag)
  local number = ids.parse(first or '') or 0
  rare.mend.solves(worker)
  local with_ids = number > (ids.parse(redis_call('MGET', base .. K.last_event_id)[1] or '') or 0)
  if with_ids then
    rare.rebuild.rise(ids.after(number, redis_call('LLEN', key) - 2), 'the batch of ' .. worker)
  end
  rare.mend.step('batch', K.WORKER .. worker .. K.worker_lost .. ' is the batch of ' .. object .. ', with ' .. redis_call('LLEN', key) - 1
    .. ' events' .. (with_ids and ': it is held, due now' or ': the events get new ids'), function()
    redis_call('LREM', key, 1, value)
    redis_call('LREM', at_of(worker) .. K.worker_object, 1, object)
    redis_call('RENAME', key, base .. K.events_held)
    redis_call('SET', base .. K.event_worker, 'held')
    if not redis_call('ZSCORE', P .. K.objects_paused, object) then
      redis_call('ZADD', P .. K.objects_held, rare.time.now_ms(), object)
    end
    if with_ids then
      redis_call('SET', base .. K.events_held_id, rare.tag.held_text(first, handouts, attempts, crashes, 'takeover'))
    else
      rare.unfinished.requeue(object, base .. K.events_held)
    end
  end)
  return true
end

-- Holds the object of a worker that is dead, with the batch, due now. The events keep their ids.
local function free(object, worker, state)
  local at = at_of(worker)
  local count, tag, named = redis_call('LLEN', at .. K.worker_event), tag_of(worker)
  local _, owned, seen = names_of(worker)
  local first = rare.tag.first_of(tag)
  local now_ms = rare.time.now_ms()
  local with_batch = count > 0 and may_have(object, named, owned, seen[object])
  if with_batch and state.count == 0 and redis_call('EXISTS', at .. K.worker_lost) == 0 then
    rare.mend.solves(worker)
  end
  if with_batch and state.count > 0 then
    return rare.mend.leave('has a held batch, and its dead owner ' .. worker .. ' has another one: look at both with `seriatim inspect`')
  elseif with_batch and first and first > state.last then
    rare.mend.step('freed', 'its owner ' .. worker .. ' is dead: it is held, due now, with ' .. count .. ' events from id ' .. ids.text(first) .. ' on', function()
      local _, handouts, attempts, crashes = rare.tag.numbers(tag)
      rare.hold.batch(at, object, now_ms, rare.tag.held_text(ids.text(first), handouts, attempts, crashes, 'takeover'))
    end)
    rare.rebuild.rise(ids.after(first, count - 1), 'the batch of ' .. worker)
  elseif with_batch then
    rare.mend.step('freed', 'its owner ' .. worker .. ' is dead: it is held, due now, and ' .. count .. ' events without valid ids get new ones', function()
      redis_call('RENAME', at .. K.worker_event, P .. object .. K.events_held)
      rare.unfinished.requeue(object, P .. object .. K.events_held)
      rare.hold.object(at, object, now_ms, nil)
    end)
  elseif not give_lost(object, worker) then
    -- If the worker has a batch, it is that of another object.
    local hold = count > 0 and rare.hold.other or rare.hold.object
    rare.mend.step('freed', 'its owner ' .. worker .. ' is dead: it is held, due now', function()
      hold(at, object, now_ms, nil)
    end)
  end
end

-- Gives a batch that a worker has put away back to the object that the batch names, as soon as no slot
-- has the object. Returns whether the batch names an object.
local function return_lost(worker)
  local object, owner = rare.lost.named(redis_call('LINDEX', at_of(worker) .. K.worker_lost, '0'))
  if not object then
    return false
  elseif owner ~= '' and owner ~= 'held' then
    rare.mend.leave('has a batch of ' .. object .. ', which ' .. (owner or 'a key of a wrong type') .. ' owns: look again when that is over')
  elseif not give_lost(object, worker) then
    rare.mend.leave('has a batch of ' .. object .. ', which has a held batch: release or skip that one first')
  end
  return true
end

-- Makes events of an object that is not known dead letters.
local function bury_lost(worker)
  local key = at_of(worker) .. K.worker_lost
  local tag = rare.tag.split(redis_call('LINDEX', key, '0'))
  local first, count = rare.tag.first_of(tag) or 0, redis_call('LLEN', key) - 1
  if first > 0 then
    rare.rebuild.rise(ids.after(first, count - 1), 'the batch of ' .. worker)
  end
  rare.mend.step('dead', count .. ' events of an object that is not known become dead letters without an object', function()
    local bytes, id = 0, first
    for _ = 1, math.min(count, 1000) do
      if bytes >= 1048576 then
        break
      end
      local event = redis_call('RPOP', key)
      redis_call('XADD', P .. K.events_dead, '*', 'id', ids.text(id), 'prev', '0', 'object', '', 'event', event, 'error',
        'repair: keys were lost, and the object of this event is not known', 'attempts', '0')
      rare.mend.spend(2, #event)
      bytes, id = bytes + #event, first > 0 and ids.after(id, 1) or 0
    end
    if redis_call('LLEN', key) > 1 then
      redis_call('LSET', key, '0', ids.text(id))
      rare.mend.again()
    else
      redis_call('DEL', key)
    end
  end)
end

-- Moves the batch of a slot, which has lost its ids, to the queue of its object.
local function requeue_batch(object, worker)
  local at, held = at_of(worker), P .. object .. K.events_held
  rare.mend.step('requeued', redis_call('LLEN', at .. K.worker_event) .. ' events of the batch of ' .. worker
    .. ' have lost their ids: they get new ids, before all queued events of ' .. object, function()
    redis_call('RENAME', at .. K.worker_event, held)
    rare.hold.object(at, object, rare.time.now_ms(), nil)
    -- The object's own repair moves the events of a batch without ids to the queue.
    redis_call('DEL', P .. object .. K.events_held_id)
    rare.unfinished.requeue(object, held)
  end)
end

-- Puts the owner of an object right, which is not `held`. Returns whether the object is in hand, and
-- then the tag of its worker.
local function mend_owner(object, state, others)
  local owner, base = state.owner, P .. object
  local wrong = wrong_key(owner)
  local is_registered, has_lease = standing(owner)
  if wrong then
    return rare.mend.leave('its owner is ' .. owner .. ', and ' .. wrong)
  elseif not is_registered and has_lease then
    -- The process registers its name again with its next renewal.
    if others.dead[owner] then
      rare.mend.leave('its owner ' .. owner .. ' has a lease, so it is not dead')
    end
    return true, nil
  elseif not is_registered and (others.dead[owner] or others.all_dead) then
    return free(object, owner, state)
  elseif not is_registered then
    return rare.mend.leave('its owner ' .. owner .. ' is no slot of a worker process of seriatim: if that worker is dead, --dead-owner ' .. owner .. ' frees the object')
  end
  local at = at_of(owner)
  local tag, named = tag_of(owner)
  local has_batch = tag ~= '' or redis_call('EXISTS', at .. K.worker_event) == 1
  -- Whether the batch of the worker is of another object.
  local is_other = has_batch and named and named ~= object
  if not is_other and redis_call('LPOS', at .. K.worker_object, object) then
    if not has_batch and give_lost(object, owner) then
      return false
    elseif not has_batch and redis_call('EXISTS', base .. K.events) == 0 then
      rare.mend.step('held', 'its owner ' .. owner .. ' has no event of it: it is held, due now', function()
        rare.hold.object(at, object, rare.time.now_ms(), nil)
      end)
      return false
    end
    return true, tag
  end
  if named ~= object and give_lost(object, owner) then
    return false
  end
  local _, owned = names_of(owner)
  if not may_have(object, named, owned, false) then
    rare.mend.step('held', 'its owner ' .. owner .. ' has another object: it is held, due now', function()
      rare.hold.other(at, object, rare.time.now_ms(), nil)
    end)
    return false
  end
  -- A living process puts a lost tag right with its next calls.
  local has_ids = rare.tag.first_of(tag) ~= nil
  has_batch = redis_call('EXISTS', at .. K.worker_event) == 1
  if not has_lease and not has_batch then
    if rare.unfinished.end_progress(object) then
      if redis_call('EXISTS', at .. K.worker_lost) == 0 then
        rare.mend.solves(owner)
      end
      rare.mend.step('held', 'its owner ' .. owner .. ' has no event of it: it is held, due now', function()
        rare.hold.object(at, object, rare.time.now_ms(), nil)
      end)
    end
    return false
  elseif not has_lease and not has_ids and state.count == 0 then
    rare.mend.solves(owner)
    requeue_batch(object, owner)
    return false
  end
  if has_ids and redis_call('EXISTS', at .. K.worker_lost) == 0 then
    rare.mend.solves(owner)
  end
  rare.mend.step('list', 'is in the list of its owner ' .. owner .. ' again', function()
    redis_call('RPUSH', at .. K.worker_object, object)
  end)
  return true, tag
end

-- Removes the tag of a worker that has no batch.
local function remove_tag(worker)
  rare.mend.step('removed', K.WORKER .. worker .. K.worker_event_id .. ' is of no batch', function()
    redis_call('DEL', at_of(worker) .. K.worker_event_id)
  end)
end

-- Gives the names in the list of a worker that is dead back to the markers, and removes its tag.
local function clear(worker)
  local names, owned = names_of(worker)
  if names[1] and not owned[1] then
    rare.mend.step('marker', #names .. ' names in the list of this dead worker are markers again', function()
      for i = #names, 1, -1 do
        rare.hold.give_back(at_of(worker), names[i])
      end
    end)
  end
  if not owned[1] and redis_call('EXISTS', at_of(worker) .. K.worker_event_id) == 1 then
    remove_tag(worker)
  end
end

-- Puts the batch of a worker right.
local function mend_worker(subject, others)
  local worker, at = subject.name, at_of(subject.name)
  local wrong = wrong_key(worker)
  if wrong then
    return rare.mend.leave(wrong)
  end
  local is_registered, has_lease = standing(worker)
  local names, owned = names_of(worker)
  local count, tag, named = redis_call('LLEN', at .. K.worker_event), tag_of(worker)
  local first = rare.tag.first_of(tag)
  if first then
    rare.rebuild.rise(ids.after(first, math.max(count - 1, 0)), 'the batch of ' .. worker)
  end
  if redis_call('EXISTS', at .. K.worker_lost) == 1 then
    -- At first, the repair of an object may take a batch that names none.
    local is_searched = subject.hint == 'searched'
    local is_returned = return_lost(worker)
    if not is_returned and is_searched and owned[1] and tag == '' and count == 0 and give_lost(owned[#owned], worker) then
      return
    elseif not is_returned and is_searched then
      bury_lost(worker)
    elseif not is_returned then
      rare.mend.leave('has a batch of an object that is not known')
    end
  end
  local is_dead = not is_registered and not has_lease and (others.dead[worker] or others.all_dead)
  if is_dead and count == 0 then
    return clear(worker)
  elseif is_dead and owned[1] then
    -- The repair of the object frees it.
    return
  elseif #owned > 1 then
    return rare.mend.leave('owns ' .. #owned .. ' objects at once: look at them with `seriatim inspect`')
  elseif (count > 0) == (owned[1] ~= nil and first ~= nil) and (tag ~= '') == (count > 0) then
    return
  elseif has_lease then
    return rare.mend.leave('its process is alive, and puts this right with its next calls: look again in a minute')
  elseif not is_registered and not is_dead then
    return rare.mend.leave('this worker is no slot of a worker process of seriatim: if it is dead, --dead-owner ' .. worker .. ' frees its object')
  end
  local object = owned[1] or named or names[#names]
  if count == 0 and tag ~= '' and owned[1] and not rare.unfinished.end_progress(object) then
    return
  elseif count == 0 and tag ~= '' and owned[1] then
    rare.mend.step('batch', 'its batch is lost: its object ' .. object .. ' goes on with its queue', function()
      rare.hold.object(at, object, rare.time.now_ms(), nil)
    end)
  elseif count == 0 and tag ~= '' then
    remove_tag(worker)
  elseif count > 0 and owned[1] and (not rare.mend.doing or redis_call('EXISTS', P .. object .. K.events_held) == 0) then
    -- The repair of the object has moved its held batch before.
    requeue_batch(object, worker)
  elseif (is_registered or is_dead and named) and subject.hint == 'searched' and count > 0 and not owned[1] and object and not rare.names.is_foreign(object) and object ~= '' and first
    and redis_call('EXISTS', P .. object .. K.event_worker) == 0
    and first > (ids.parse(redis_call('MGET', P .. object .. K.last_event_id)[1] or '') or 0) then
    -- No object has the slot as its owner: the repair of such an object would have put it into the list.
    rare.mend.step('owner', 'has a batch and the name of ' .. object .. ', which nobody owns: it owns that object again', function()
      redis_call('SET', P .. object .. K.event_worker, worker)
      if not redis_call('LPOS', at .. K.worker_object, object) then
        redis_call('RPUSH', at .. K.worker_object, object)
      end
    end)
  else
    rare.mend.leave('has a batch of ' .. count .. ' events, but no object is known for it: look at ' .. K.WORKER .. worker .. K.worker_event)
  end
end

return { owner = mend_owner, mend = mend_worker }
