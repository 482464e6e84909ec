-- claim: free slots get objects: first of the names in their own lists, then of due held objects and markers in turn.

-- Objects this call has dealt with: what a chunk of markers was told of them before does not hold any more.
local met = {}

-- Holds a held object whose owner's key has a wrong type, until an operator releases it: its batch and the numbers of that stay what they are.
local function quarantine_held(slot, object)
  met[object], put_aside[object] = true, true
  quarantined[#quarantined + 1] = object
  quarantined[#quarantined + 1] = quarantined_by(object .. event_worker)
  call('ZADD', P .. objects_held, 'inf', object)
  call('SET', P .. object .. event_worker, 'held')
  call('LREM', slot.at .. worker_object, '1', object)
end

-- Slots that have claimed an object and its first event: more of them, and ids, they get together.
local claimed = {}

-- Makes the slot the owner of `object` and takes its first event. Answers 'claimed', 'empty', or 'wrong'.
-- `owner` and `last` are what its keys tell; `sound` that where they tell nothing, there is nothing; `named` that the slot's list has the name.
local function own(slot, object, owner, last, sound, named)
  if last and not id_of(last) or not last and not sound and call('EXISTS', P .. object .. last_event_id) == 1 then
    quarantine(slot, object, object .. last_event_id)
    return 'wrong'
  end
  local entry, wrong = take_first(slot, object)
  if wrong then
    quarantine(slot, object, wrong)
    return 'wrong'
  elseif not entry then
    return 'empty'
  end
  -- A key that told nobody, and yet is there, has a wrong type: nobody may pass over what is held.
  if not owner and not sound and call('EXISTS', P .. object .. event_worker) == 1 and call('ZSCORE', P .. objects_held, object) then
    put_back(slot, object, entry)
    quarantine_held(slot, object)
    return 'wrong'
  end
  if not named then
    call('LPUSH', slot.at .. worker_object, object)
  end
  set_later(P .. object .. event_worker, w_of(slot))
  if last and forget_ms > 0 then
    -- Set anew it has no time to live: it must not be forgotten while events that follow on it are in flight.
    set_later(P .. object .. last_event_id, last)
  end
  entry[4] = last or '0'
  claimed[#claimed + 1] = { slot, entry }
  claims, slot.has, slot.object, progress = claims - 1, true, object, true
  return 'claimed'
end

-- Gives the slots that have claimed what else there is, and ids. Where objects have one event each, as is the rule while nothing has piled up, one
-- look tells.
local function fill()
  local queues = {}
  for n, one in ipairs(claimed) do
    queues[n] = P .. one[2][2] .. events
  end
  local some_left = #queues > 0 and call('EXISTS', unpack(queues)) > 0
  for _, one in ipairs(claimed) do
    local slot, entry = one[1], one[2]
    if some_left and reply_bytes > 0 then
      take_more(slot, entry)
    end
    give(slot, entry[4], entry)
  end
  claimed = {}
end

-- The names in the slot's own W:object: moved there by a pop, or left there by a lost reply.
local function claim_taken(slot)
  local w, taken = w_of(slot), call('LRANGE', slot.at .. worker_object, 0, -1)
  for i = #taken, 1, -1 do
    local object = taken[i]
    local found = call('MGET', P .. object .. event_worker, P .. object .. last_event_id)
    progress = true
    -- A name may be there twice, by two pops: the second one says nothing more.
    if object == '' or object == slot.object or found[1] and found[1] ~= w then
      call('LREM', slot.at .. worker_object, '1', object)
    elseif slot.has or claims <= 0 or reply_bytes <= 0 then
      if found[1] then
        hold_now(slot, object)
      else
        stray(slot.at, object)
        markers_left = markers_left + 1
      end
    elseif own(slot, object, found[1], found[2], false, true) == 'empty' then
      release(slot, object)
    end
    -- Another slot's list may have the same name.
    write_down()
  end
end

-- A pop has answered after its slot was given something else: what it moved must not wait behind that.
local function return_strays(slot)
  for _, object in ipairs(call('LRANGE', slot.at .. worker_object, 0, -1)) do
    if call('MGET', P .. object .. event_worker)[1] ~= w_of(slot) then
      stray(slot.at, object)
      -- The empty name only wakes: it does not become a marker again.
      markers_left, progress = markers_left + (object == '' and 0 or 1), true
    end
  end
end

local due, due_at, due_end = {}, 0, false
local function next_due()
  repeat
    if due_at == #due and not due_end then
      due, due_at = call('ZRANGE', P .. objects_held, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, claims), 0
      due_end = #due == 0
    end
    due_at = due_end and 0 or due_at + 1
  until due_end or not put_aside[due[due_at]]
  return due[due_at]
end

-- A held batch, handed out once more.
local function claim_batch(slot, object, first, handouts, attempts, crashes)
  local batch = try('LRANGE', P .. object .. events_held, 0, -1)
  local last = try('GET', P .. object .. last_event_id)
  local wrong = is_wrong_type(batch) and events_held or is_wrong_type(last) and last_event_id or last and not id_of(last) and last_event_id
  if wrong or #batch == 0 then
    local why = quarantined_by(object .. (wrong or events_held))
    call('ZADD', P .. objects_held, 'inf', object)
    call('SET', P .. object .. events_held_id, held_id_of(first, handouts, attempts, crashes, why))
    quarantined[#quarantined + 1] = object
    quarantined[#quarantined + 1] = why
    return 'dropped'
  end
  local tag = tag_of(first, handouts + 1, tonumber(attempts), tonumber(crashes))
  call('LPUSH', slot.at .. worker_object, object)
  call('ZREM', P .. objects_held, object)
  call('RENAME', P .. object .. events_held, slot.at .. worker_event)
  call('DEL', P .. object .. events_held_id)
  call('MSET', P .. object .. event_worker, w_of(slot), slot.at .. worker_event_id, tag)
  give_again(slot, object, tag)
  claims = claims - 1
  return 'claimed'
end

-- Claims one due held object. Answers 'claimed', 'dropped', or nil where none is due.
local function claim_held(slot)
  local object = next_due()
  if not object then
    return nil
  end
  progress = true
  local found = call('MGET', P .. object .. event_worker, P .. object .. last_event_id, P .. object .. events_held_id)
  if not found[1] and call('EXISTS', P .. object .. event_worker) == 1 then
    quarantine_held(slot, object)
    return 'dropped'
  elseif found[1] ~= 'held' then
    call('ZREM', P .. objects_held, object)
    return 'dropped'
  end
  local first, handouts, attempts, crashes = string.match(found[3] or '', '^(%d+) (%d+) (%d+) (%d+)')
  if first and first ~= '0' then
    return claim_batch(slot, object, first, handouts, attempts, crashes)
  end
  -- Without numbers there must be no batch, for it would be passed over, and the next hold would write over it.
  if call('EXISTS', P .. object .. events_held) == 1 then
    call('ZADD', P .. objects_held, 'inf', object)
    quarantined[#quarantined + 1] = object
    quarantined[#quarantined + 1] = quarantined_by(object .. events_held_id) .. ' and tells no ids'
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

-- The markers are read in chunks from the tail and trimmed by as many as were used.
local chunk, chunk_at, chunk_size, used = {}, 0, 0, 0
-- What the keys of the objects in the chunk tell, and whether where they tell nothing, there is nothing.
local chunk_owner, chunk_last, chunk_sound = {}, {}, false

local function trim_markers()
  if used > 0 then
    call('LTRIM', P .. objects_with_events, 0, -1 - used)
    markers_left = markers_left - used
    progress, used = true, 0
  end
end

-- Asks for the owner and the last id of every object in the chunk, once each.
local function look_at_chunk()
  local keys, objects = {}, {}
  chunk_owner, chunk_last = {}, {}
  for _, object in ipairs(chunk) do
    if chunk_owner[object] == nil then
      chunk_owner[object] = false
      local n = #objects + 1
      objects[n], keys[2 * n - 1], keys[2 * n] = object, P .. object .. event_worker, P .. object .. last_event_id
    end
  end
  local found, untold = call('MGET', unpack(keys)), {}
  for n, object in ipairs(objects) do
    local owner, last = found[2 * n - 1], found[2 * n]
    chunk_owner[object], chunk_last[object] = owner, last
    if not owner then
      untold[#untold + 1] = keys[2 * n - 1]
      untold[#untold + 1] = not last and keys[2 * n] or nil
    end
  end
  -- MGET tells nothing of a key of a wrong type either.
  chunk_sound = #untold == 0 or call('EXISTS', unpack(untold)) == 0
end

local function next_marker()
  if chunk_at == 0 then
    trim_markers()
    -- A run of markers that lead nowhere is passed over in larger and larger strides.
    chunk_size = math.min(math.max(chunk_size * 2, claims), 512, markers_max, markers_left)
    if chunk_size <= 0 then
      return nil
    end
    chunk = call('LRANGE', P .. objects_with_events, -chunk_size, -1)
    chunk_at = #chunk
    look_at_chunk()
  end
  local object = chunk[chunk_at]
  chunk_at, markers_max = chunk_at - 1, markers_max - 1
  return object
end

-- Claims the object of one marker. Answers 'claimed', 'dropped', or nil where there is no marker to look at.
local function claim_marker(slot)
  local object, got = next_marker(), nil
  if not object then
    return nil
  elseif object ~= '' and not chunk_owner[object] and not met[object] then
    met[object] = true
    got = own(slot, object, false, chunk_last[object], chunk_sound, false)
  end
  -- Only now: a marker is there until something else covers its object.
  used = used + 1
  return got == 'claimed' and got or 'dropped'
end

-- Held objects and markers in turn, one and one; where one side has nothing, the other goes on. Markers left that this call may not look at
-- are not nothing: their turn goes on with the next call, or an object behind the many that busy ones leave would wait for turns of all of those.
local function claim(slot)
  local without = 0
  while without < 2 and claims > 0 and reply_bytes > 0 and not slot.has do
    local got
    if from == 'held' then
      got, from = claim_held(slot), 'markers'
    else
      got = claim_marker(slot)
      if not got and markers_left > 0 then
        return
      end
      -- A marker that led nowhere does not use up the turn of the markers.
      from = got == 'dropped' and 'markers' or 'held'
    end
    without = got and 0 or without + 1
  end
end
