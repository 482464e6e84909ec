-- orphan: objects whose owner, or batches whose object, cannot be found by any worker process.
-- Uses: hold.batch hold.give_back hold.object ids.after ids.parse ids.text mend.again mend.doing
-- Uses: mend.leave mend.solves mend.spend mend.step names.is_foreign object.end_progress
-- Uses: object.requeue rebuild.rise registry.parse tag.first_of tag.held_text tag.numbers
-- Uses: time.now_ms worker.parse

local NAMES_MAX, SLOTS_MAX = 1000, 65536

-- Returns the beginning of the keys of a worker.
local function at_of(worker)
  return P .. K.WORKER .. worker
end

local function type_of(key)
  return call('TYPE', key).ok
end

-- Returns whether the worker is a slot of a registered name, and whether a process may still have it:
-- its name has a lease, and either has this slot, or its registration is lost or invalid.
local function standing(worker)
  local name, slot = M.worker.parse(worker)
  if not name then
    return false, call('EXISTS', at_of(worker) .. K.worker_lease) == 1
  end
  local slots = M.registry.parse(call('HGET', P .. K.event_workers, name) or '')
  local is_valid = slots >= 1 and slots <= SLOTS_MAX
  local is_registered = is_valid and slot < slots
  return is_registered, (is_registered or not is_valid) and call('EXISTS', at_of(name) .. K.worker_lease) == 1
end

-- Returns the names in the worker's list, and those of them that it owns.
local function names_of(worker)
  local names, owned, seen = call('LRANGE', at_of(worker) .. K.worker_object, 0, NAMES_MAX - 1), {}, {}
  for _, name in ipairs(names) do
    if not seen[name] and not M.names.is_foreign(name) and call('MGET', P .. name .. K.event_worker)[1] == worker then
      owned[#owned + 1] = name
    end
    seen[name] = true
  end
  M.mend.spend(#names, 0)
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

-- Holds the object of a worker that is dead, with the batch, due now. The events keep their ids.
local function free(object, worker, state)
  local at = at_of(worker)
  local tag, count = call('GET', at .. K.worker_event_id) or '', call('LLEN', at .. K.worker_event)
  local _, owned, seen = names_of(worker)
  local first = M.tag.first_of(tag)
  local now_ms = M.time.now_ms()
  local with_batch = count > 0 and (seen[object] or #owned == 0)
  if with_batch and state.count == 0 and call('EXISTS', at .. K.worker_lost) == 0 then
    M.mend.solves(worker)
  end
  if with_batch and state.count > 0 then
    return M.mend.leave('has a held batch, and its dead owner ' .. worker .. ' has another one: look at both with `seriatim inspect`')
  elseif with_batch and first and first > state.last then
    M.mend.step('freed', 'its owner ' .. worker .. ' is dead: it is held, due now, with ' .. count .. ' events from id ' .. M.ids.text(first) .. ' on', function()
      local _, handouts, attempts, crashes = M.tag.numbers(tag)
      M.hold.batch(at, object, now_ms, M.tag.held_text(M.ids.text(first), handouts, attempts, crashes, 'takeover'))
    end)
    M.rebuild.rise(M.ids.after(first, count - 1), 'the batch of ' .. worker)
  elseif with_batch then
    M.mend.step('freed', 'its owner ' .. worker .. ' is dead: it is held, due now, and ' .. count .. ' events without valid ids get new ones', function()
      call('RENAME', at .. K.worker_event, P .. object .. K.events_held)
      M.object.requeue(object, P .. object .. K.events_held)
      M.hold.object(at, object, now_ms, nil)
    end)
  else
    M.mend.step('freed', 'its owner ' .. worker .. ' is dead: it is held, due now', function()
      M.hold.object(at, object, now_ms, nil)
    end)
  end
end

-- Gives an object the batch back that its worker has put away, because the name of the object was
-- lost from the worker's list. The events keep their ids if their tag is known.
local function give_lost(object, worker, state)
  local key, base = at_of(worker) .. K.worker_lost, P .. object
  local tag = call('LINDEX', key, '0')
  local first, handouts, attempts, crashes = M.tag.numbers(tag)
  local number = M.ids.parse(first or '') or 0
  M.mend.solves(worker)
  local with_ids = number > state.last
  if with_ids then
    M.rebuild.rise(M.ids.after(number, call('LLEN', key) - 2), 'the batch of ' .. worker)
  end
  M.mend.step('batch', 'has its batch of ' .. call('LLEN', key) - 1 .. ' events again, from ' .. K.WORKER .. worker .. K.worker_lost
    .. (with_ids and ': it is held, due now' or ': the events get new ids'), function()
    call('LREM', key, 1, tag)
    call('RENAME', key, base .. K.events_held)
    call('SET', base .. K.event_worker, 'held')
    call('ZADD', P .. K.objects_held, M.time.now_ms(), object)
    if with_ids then
      call('SET', base .. K.events_held_id, M.tag.held_text(first, handouts, attempts, crashes, 'takeover'))
    else
      M.object.requeue(object, base .. K.events_held)
    end
  end)
end

-- Makes events of an object that is not known dead letters.
local function bury_lost(worker)
  local key = at_of(worker) .. K.worker_lost
  local tag = call('LINDEX', key, '0')
  local first, count = M.tag.first_of(tag) or 0, call('LLEN', key) - 1
  if first > 0 then
    M.rebuild.rise(M.ids.after(first, count - 1), 'the batch of ' .. worker)
  end
  M.mend.step('dead', count .. ' events of an object that is not known become dead letters without an object', function()
    local bytes, id = 0, first
    for _ = 1, math.min(count, 1000) do
      if bytes >= 1048576 then
        break
      end
      local event = call('RPOP', key)
      call('XADD', P .. K.events_dead, '*', 'id', M.ids.text(id), 'prev', '0', 'object', '', 'event', event, 'error',
        'repair: keys were lost, and the object of this event is not known', 'attempts', '0')
      M.mend.spend(2, #event)
      bytes, id = bytes + #event, first > 0 and M.ids.after(id, 1) or 0
    end
    if call('LLEN', key) > 1 then
      call('LSET', key, '0', M.ids.text(id))
      M.mend.again()
    else
      call('DEL', key)
    end
  end)
end

-- Moves the batch of a slot, which has lost its ids, to the queue of its object.
local function requeue_batch(object, worker)
  local at, held = at_of(worker), P .. object .. K.events_held
  M.mend.step('requeued', call('LLEN', at .. K.worker_event) .. ' events of the batch of ' .. worker
    .. ' have lost their ids: they get new ids, before all queued events of ' .. object, function()
    call('RENAME', at .. K.worker_event, held)
    M.hold.object(at, object, M.time.now_ms(), nil)
    -- The object's own repair moves the events of a batch without ids to the queue.
    call('DEL', P .. object .. K.events_held_id)
    M.object.requeue(object, held)
  end)
end

-- Puts the owner of an object right, which is not `held`. Returns whether the object is in hand, and
-- then the tag of its worker.
local function mend_owner(object, state, others)
  local owner, base = state.owner, P .. object
  local wrong = wrong_key(owner)
  local is_registered, has_lease = standing(owner)
  if wrong then
    return M.mend.leave('its owner is ' .. owner .. ', and ' .. wrong)
  elseif not is_registered and has_lease then
    -- The process registers its name again with its next renewal.
    if others.dead[owner] then
      M.mend.leave('its owner ' .. owner .. ' has a lease, so it is not dead')
    end
    return true, nil
  elseif not is_registered and (others.dead[owner] or others.all_dead) then
    return free(object, owner, state)
  elseif not is_registered then
    return M.mend.leave('its owner ' .. owner .. ' is no slot of a worker process of seriatim: if that worker is dead, --dead-owner ' .. owner .. ' frees the object')
  end
  local at = at_of(owner)
  local tag = call('GET', at .. K.worker_event_id) or ''
  if call('LPOS', at .. K.worker_object, object) then
    if tag == '' and call('EXISTS', at .. K.worker_event, base .. K.events) == 0 then
      M.mend.step('held', 'its owner ' .. owner .. ' has no event of it: it is held, due now', function()
        M.hold.object(at, object, M.time.now_ms(), nil)
      end)
      return false
    end
    return true, tag
  end
  if state.count == 0 and call('LLEN', at .. K.worker_lost) > 1 then
    give_lost(object, owner, state)
    return false
  end
  local _, owned = names_of(owner)
  if owned[1] then
    M.mend.step('held', 'its owner ' .. owner .. ' has another object: it is held, due now', function()
      call('SET', base .. K.event_worker, 'held')
      call('ZADD', P .. K.objects_held, M.time.now_ms(), object)
    end)
    return false
  end
  -- A living process puts a lost tag right with its next calls.
  local has_batch, has_ids = call('EXISTS', at .. K.worker_event) == 1, M.tag.first_of(tag) ~= nil
  if not has_lease and not has_batch then
    if M.object.end_progress(object) then
      if call('EXISTS', at .. K.worker_lost) == 0 then
        M.mend.solves(owner)
      end
      M.mend.step('held', 'its owner ' .. owner .. ' has no event of it: it is held, due now', function()
        M.hold.object(at, object, M.time.now_ms(), nil)
      end)
    end
    return false
  elseif not has_lease and not has_ids and state.count == 0 then
    M.mend.solves(owner)
    requeue_batch(object, owner)
    return false
  end
  if has_ids and call('EXISTS', at .. K.worker_lost) == 0 then
    M.mend.solves(owner)
  end
  M.mend.step('list', 'is in the list of its owner ' .. owner .. ' again', function()
    call('LPUSH', at .. K.worker_object, object)
  end)
  return true, tag
end

-- Removes the tag of a worker that has no batch.
local function remove_tag(worker)
  M.mend.step('removed', K.WORKER .. worker .. K.worker_event_id .. ' is of no batch', function()
    call('DEL', at_of(worker) .. K.worker_event_id)
  end)
end

-- Gives the names in the list of a worker that is dead back to the markers, and removes its tag.
local function clear(worker)
  local names, owned = names_of(worker)
  if names[1] and not owned[1] then
    M.mend.step('marker', #names .. ' names in the list of this dead worker are markers again', function()
      for i = #names, 1, -1 do
        M.hold.give_back(at_of(worker), names[i])
      end
    end)
  end
  if not owned[1] and call('EXISTS', at_of(worker) .. K.worker_event_id) == 1 then
    remove_tag(worker)
  end
end

-- Puts the batch of a worker right.
local function mend_worker(subject, others)
  local worker, at = subject.name, at_of(subject.name)
  local wrong = wrong_key(worker)
  if wrong then
    return M.mend.leave(wrong)
  end
  local is_registered, has_lease = standing(worker)
  local names, owned = names_of(worker)
  local tag, count = call('GET', at .. K.worker_event_id) or '', call('LLEN', at .. K.worker_event)
  local first = M.tag.first_of(tag)
  if first then
    M.rebuild.rise(M.ids.after(first, math.max(count - 1, 0)), 'the batch of ' .. worker)
  end
  if call('EXISTS', at .. K.worker_lost) == 1 then
    -- At first, the repair of an object may take this batch.
    if subject.hint == 'searched' then
      bury_lost(worker)
    else
      M.mend.leave('has a batch of an object that is not known')
    end
  end
  local is_dead = not is_registered and not has_lease and (others.dead[worker] or others.all_dead)
  if is_dead and count == 0 then
    return clear(worker)
  elseif is_dead and owned[1] then
    -- The repair of the object frees it.
    return
  elseif #owned > 1 then
    return M.mend.leave('owns ' .. #owned .. ' objects at once: look at them with `seriatim inspect`')
  elseif (count > 0) == (owned[1] ~= nil and first ~= nil) and (tag ~= '') == (count > 0) then
    return
  elseif has_lease then
    return M.mend.leave('its process is alive, and puts this right with its next calls: look again in a minute')
  elseif not is_registered and not is_dead then
    return M.mend.leave('this worker is no slot of a worker process of seriatim: if it is dead, --dead-owner ' .. worker .. ' frees its object')
  end
  local object = owned[1] or names[#names]
  if count == 0 and tag ~= '' and owned[1] and not M.object.end_progress(object) then
    return
  elseif count == 0 and tag ~= '' and owned[1] then
    M.mend.step('batch', 'its batch is lost: its object ' .. object .. ' goes on with its queue', function()
      M.hold.object(at, object, M.time.now_ms(), nil)
    end)
  elseif count == 0 and tag ~= '' then
    remove_tag(worker)
  elseif count > 0 and owned[1] and (not M.mend.doing or call('EXISTS', P .. object .. K.events_held) == 0) then
    -- The repair of the object has moved its held batch before.
    requeue_batch(object, worker)
  elseif is_registered and count > 0 and not owned[1] and object and not M.names.is_foreign(object) and object ~= '' and first
    and call('EXISTS', P .. object .. K.event_worker) == 0
    and first > (M.ids.parse(call('MGET', P .. object .. K.last_event_id)[1] or '') or 0) then
    M.mend.step('owner', 'has a batch and the name of ' .. object .. ', which nobody owns: it owns that object again', function()
      call('SET', P .. object .. K.event_worker, worker)
    end)
  else
    M.mend.leave('has a batch of ' .. count .. ' events, but no object is known for it: look at ' .. K.WORKER .. worker .. K.worker_event)
  end
end

return { owner = mend_owner, mend = mend_worker }
