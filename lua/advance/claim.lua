-- claim: free slots get objects: first of the names in their own lists, then of due held objects and markers in turn.

-- Holds a held object whose owner's key has a wrong type, until an operator releases it: its batch and the numbers of that stay what they are.
local function quarantine_held(slot, object)
  put_aside[object] = true
  quarantined[#quarantined + 1] = object
  quarantined[#quarantined + 1] = quarantined_by(object .. event_worker)
  call('ZADD', P .. objects_held, 'inf', object)
  try('ZREM', P .. objects_paused, object)
  call('SET', P .. object .. event_worker, 'held')
  call('LREM', slot.list, '1', object)
end

-- Whether the object is among the held or the paused ones. Where that cannot be told of the paused ones, because their key has a wrong type, it is.
local function is_held(object)
  return call('ZSCORE', P .. objects_held, object) or try('ZSCORE', P .. objects_paused, object)
end

-- Puts the object into the slot's list, in the place of the one it has left. Answers the error where that cannot be done.
local function enlist(slot, object)
  local put = slot.left and try('LSET', slot.list, '-1', object) or try('LPUSH', slot.list, object)
  if type(put) == 'table' and put.err then
    return put
  end
  slot.left = false
end

-- Slots that have claimed an object and its first event: more of them, and ids, they get together.
local claimed, claimed_queues, claimed_entries = {}, {}, {}

-- Makes the slot the owner of `object` and takes its first event. Answers 'claimed', 'empty', 'paused', or 'wrong'.
-- `owner` and `last` are what its keys tell; `sound` that where they tell nothing, there is nothing; `named` that the slot's list has the name.
local function own(slot, object, owner, last, sound, named)
  if rules_next and owner ~= 'held' and pause_ruled(slot, object, last, named) then
    return 'paused'
  end
  local entry, wrong = take_first(slot, object)
  if wrong then
    quarantine(slot, object, wrong)
    return 'wrong'
  elseif not entry then
    return 'empty'
  end
  if last and not id_of(last) or not last and not sound and call('EXISTS', P .. object .. last_event_id) == 1 then
    put_back(slot, object, entry)
    quarantine(slot, object, object .. last_event_id)
    return 'wrong'
  end
  -- A key that told nobody, and yet is there, has a wrong type: nobody may pass over what is held.
  if not owner and not sound and call('EXISTS', P .. object .. event_worker) == 1 and is_held(object) then
    put_back(slot, object, entry)
    quarantine_held(slot, object)
    return 'wrong'
  end
  local failed = not named and enlist(slot, object)
  if failed then
    put_back(slot, object, entry)
    error(failed)
  end
  set_later(P .. object .. event_worker, slot.w)
  if last and forget_ms > 0 then
    -- Set anew it has no time to live: it must not be forgotten while events that follow on it are in flight.
    set_later(P .. object .. last_event_id, last)
  end
  entry[4] = last or '0'
  local n = #claimed + 1
  claimed[n], claimed_queues[n], claimed_entries[n] = slot, P .. object .. events, entry
  claims, slot.has, slot.object, progress = claims - 1, true, object, true
  return 'claimed'
end

-- Gives the slots that have claimed what else there is, and ids. Where objects have one event each, as is the rule while nothing has piled up, one
-- look tells.
local function fill()
  local some_left = #claimed > 0 and call('EXISTS', unpack(claimed_queues)) > 0
  for n, slot in ipairs(claimed) do
    local entry = claimed_entries[n]
    if some_left and reply_bytes > 0 then
      take_more(slot, entry)
    end
    give(slot, entry[4], entry)
  end
end

-- The names in the slot's own W:object: moved there by a pop, or left there by a lost reply.
local function claim_taken(slot)
  local w, taken = slot.w, call('LRANGE', slot.list, 0, -1)
  for i = #taken, 1, -1 do
    local object = taken[i]
    local found = call('MGET', P .. object .. event_worker, P .. object .. last_event_id)
    progress = true
    -- A name may be there twice, by two pops: the second one says nothing more.
    if object == '' or object == slot.object or found[1] and found[1] ~= w then
      call('LREM', slot.list, '1', object)
    elseif slot.has or claims <= 0 or reply_bytes <= 0 then
      if found[1] then
        hold_now(slot, object)
      else
        stray(at_of(slot), object)
        markers_left = markers_left + 1
      end
    elseif own(slot, object, found[1], found[2], false, true) == 'empty' then
      call('LREM', slot.list, '1', object)
      delete_later(P .. object .. event_worker)
      forget_later(object)
    end
    -- Another slot's list may have the same name.
    write_down()
  end
end

-- A pop has answered after its slot was given something else: what it moved must not wait behind that.
local function return_strays(slot, slots)
  for _, other in ipairs(slots) do
    slot.left = slot.left or other.number == slot.number and other.left
  end
  for _, object in ipairs(call('LRANGE', slot.list, 0, -1)) do
    if object ~= slot.left and call('MGET', P .. object .. event_worker)[1] ~= slot.w then
      stray(at_of(slot), object)
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
  local failed = enlist(slot, object)
  if failed then
    error(failed)
  end
  call('ZREM', P .. objects_held, object)
  call('RENAME', P .. object .. events_held, slot.batch)
  call('DEL', P .. object .. events_held_id)
  call('MSET', P .. object .. event_worker, slot.w, slot.tag, tag)
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
  elseif rules_next and pause_held(object) then
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

-- The markers are read in chunks from the tail and trimmed by as many as were used. Of a chunk, only objects that nobody owns lead anywhere,
-- each of them once: who they are, how many markers come before, and their last ids.
local chunk_size, chunk_read, used = 0, 0, 0
local free, free_at, before, last_ids, sound = {}, 0, {}, {}, false
-- Asked about once in a call. The empty name only wakes.
local seen = { [''] = true }

local function trim_markers()
  if used > 0 then
    call('LTRIM', P .. objects_with_events, 0, -1 - used)
    markers_left = markers_left - used
    progress, used = true, 0
  end
end

-- Leaves those that nobody owns. Answers whether nobody's key is there: MGET tells nothing of a key of a wrong type either.
local function keep_free(objects, places, owner_keys)
  local owned = #objects > 0 and call('EXISTS', unpack(owner_keys)) or 0
  if owned == 0 then
    free, before = objects, places
    return true
  end
  for n, owner in ipairs(call('MGET', unpack(owner_keys))) do
    if owner then
      owned = owned - 1
    else
      free[#free + 1], before[#before + 1] = objects[n], places[n]
    end
  end
  return owned == 0
end

-- Whether any of those that nobody owns has events. Asked only where markers before have led nowhere: it costs what it spares elsewhere.
local function any_events()
  local queues = {}
  for n, object in ipairs(free) do
    queues[n] = P .. object .. events
  end
  return #queues > 0 and call('EXISTS', unpack(queues)) > 0
end

-- The last ids of those that nobody owns. Answers whether every key that told nothing is not there.
local function ask_last_ids()
  local keys, untold = {}, {}
  for n, object in ipairs(free) do
    keys[n] = P .. object .. last_event_id
  end
  last_ids = #keys > 0 and call('MGET', unpack(keys)) or {}
  for n, last in ipairs(last_ids) do
    untold[#untold + 1] = not last and keys[n] or nil
  end
  return #untold == 0 or call('EXISTS', unpack(untold)) == 0
end

-- Reads the next chunk, once the one before is used up. Answers whether there is one.
local function read_chunk()
  trim_markers()
  chunk_read, free, free_at, before = 0, {}, 0, {}
  -- A run of markers that lead nowhere is passed over in larger and larger strides.
  chunk_size = math.min(math.max(chunk_size * 2, claims), 512, markers_max, markers_left)
  if chunk_size <= 0 then
    return false
  end
  local chunk = call('LRANGE', P .. objects_with_events, -chunk_size, -1)
  chunk_read = #chunk
  markers_max = markers_max - chunk_read
  local objects, places, owner_keys, n = {}, {}, {}, 0
  for i = chunk_read, 1, -1 do
    local object = chunk[i]
    if not seen[object] then
      seen[object] = true
      n = n + 1
      objects[n], places[n], owner_keys[n] = object, chunk_read - i, P .. object .. event_worker
    end
  end
  local none_untold = keep_free(objects, places, owner_keys)
  if chunk_size > claims and not any_events() then
    free = {}
  end
  sound = ask_last_ids() and none_untold
  return true
end

-- Claims the object of the next marker that leads to one. Answers 'claimed', 'dropped', or nil where there is no marker to look at.
local function claim_marker(slot)
  local looked = used < chunk_read
  repeat
    while free_at < #free do
      free_at = free_at + 1
      local object = free[free_at]
      -- What a chunk was told of an object before it was put aside does not hold any more.
      if not put_aside[object] then
        used = before[free_at]
        local got = own(slot, object, false, last_ids[free_at], sound, false)
        -- Only now: a marker is there until something else covers its object.
        used = used + 1
        return got == 'claimed' and got or 'dropped'
      end
    end
    used = chunk_read
    local read = read_chunk()
    looked = looked or read
  until not read
  return looked and 'dropped' or nil
end

-- Held objects and markers in turn, one and one; where one side has nothing, the other goes on. Markers left that this call may not look at
-- are not nothing: their turn goes on with the next call, or an object behind the many that busy ones leave would wait for turns of all of those.
local function claim(slot)
  local without = 0
  while without < 2 and claims > 0 and reply_bytes > 0 and not slot.has do
    local got
    if from == 'held' then
      got, from = not due_end and claim_held(slot), 'markers'
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
