-- markers: claims the objects to which markers lead.

-- The markers are read in chunks from the tail, and trimmed when they are used. From a chunk the
-- call needs each object without an owner, once. `free` has the names of these objects, `before`
-- the numbers of markers before them, `owner_keys` the keys of their owners, and `last_ids` their
-- last ids. `is_sound` is the argument of `claims.claim`. If the groups take turns, the chunks are
-- names that were grouped, and `held` has the held objects among them.
local CHUNK_MAX, byte, claim_object = 512, string.byte, claims.claim
local OWNER, LAST_ID = K.event_worker, K.last_event_id
local chunk_size, chunk_read = 0, 0
local free, free_at, before, owner_keys, last_ids, is_sound, held = {}, 0, {}, {}, {}, false, {}
-- Whether no object had a last id when the last ids were read last, perhaps in an earlier call. Only
-- the order of the questions depends on it.
local are_new = false
-- Names that the call has met.
local seen = {}
-- Marks of the chunk, and the numbers of markers before them.
local marks, marks_before = {}, {}

-- Begins the claims of a call. The empty name only wakes a worker.
local function begin()
  chunk_size, chunk_read, free, free_at, seen, marks = 0, 0, {}, 0, { [''] = true }, {}
end

-- Counts an object that could not be claimed. To quarantine an object takes as long as to let four
-- go. Other objects count only if `counts`.
local function count_drop(quarantined_before, counts)
  if call.quarantined_n > quarantined_before then
    rare.spending.drops(4)
  elseif counts then
    rare.spending.drops(1)
  end
end

-- Trims the markers that are used.
local function trim()
  if call.grouped then
    rare.groups.trim(call.markers_used)
    call.markers_left = call.waiting
    call.progress, call.markers_used = call.progress or call.markers_used > 0, 0
  elseif call.markers_used > 0 then
    redis_call('LTRIM', P .. K.objects_with_events, '0', -1 - call.markers_used)
    if marks[1] then
      local used = {}
      for n, mark in ipairs(marks) do
        used[#used + 1] = marks_before[n] < call.markers_used and mark or nil
      end
      rare.marks.met_all(used)
    end
    call.markers_left = call.markers_left - call.markers_used
    call.progress, call.markers_used = true, 0
  end
end

-- Stores the objects without an owner in `free`. Returns whether every owner key that MGET returned
-- as nil is really absent: MGET also returns nil for a key of a wrong type.
local function keep_free(objects, places, keys)
  local owned = #objects > 0 and redis_call('EXISTS', unpack(keys)) or 0
  if owned == 0 then
    free, before, owner_keys = objects, places, keys
    return true
  end
  for n, owner in ipairs(redis_call('MGET', unpack(keys))) do
    if owner then
      owned = owned - 1
    end
    if not owner or call.grouped and owner == 'held' then
      local f = #free + 1
      free[f], before[f], owner_keys[f] = objects[n], places[n], keys[n]
      held[objects[n]] = owner or nil
    end
  end
  return owned == 0
end

-- Removes object `f` from `free`.
local function drop(f)
  table.remove(free, f)
  table.remove(before, f)
  table.remove(owner_keys, f)
end

-- Finds the held and paused objects in `free` whose owner keys were evicted or have a wrong type. Their
-- held batches must still come before their later events. If their names were grouped, held objects
-- can be claimed now. Costs a command while objects are held, and one more while objects of a lifted
-- rule are woken. Under load objects are usually held, because hot objects are held between their turns.
local function keep_held()
  if not free[1] or not call.has_held and not call.held_changed and call.rules_next ~= '0' then
    return
  end
  local scores = redis_call('ZMSCORE', P .. K.objects_held, unpack(free))
  local paused = call.rules_next == '0' and redis_call('ZMSCORE', P .. K.objects_paused, unpack(free)) or {}
  for f = #scores, 1, -1 do
    local object, score = free[f], scores[f]
    if (score or paused[f]) and not held[object] then
      if call.grouped and score and tonumber(score) < 0 then
        held[object] = 'held'
      elseif not call.claimed[object] and rare.missing.put_back(object) then
        drop(f)
      end
    end
  end
end

-- Returns whether any of these objects has events. The call asks only if the chunk is larger than the
-- claims that are left. In other cases the question would cost as much as it saves.
local function any_events()
  local queues = {}
  if next(held) then
    return true
  end
  for n, object in ipairs(free) do
    queues[n] = P .. object .. K.events
  end
  return #queues > 0 and redis_call('EXISTS', unpack(queues)) > 0
end

-- Reads the last ids of these objects. Returns whether every last id that MGET returned as nil is
-- really absent. After a chunk of new objects, asks first whether these are new, too.
local function ask_last_ids()
  local keys, u = {}, 0
  for n = 1, #free do
    keys[n] = P .. free[n] .. LAST_ID
  end
  if not keys[1] or are_new and redis_call('EXISTS', unpack(keys)) == 0 then
    last_ids = {}
    return true
  end
  last_ids = redis_call('MGET', unpack(keys))
  for n = 1, #last_ids do
    if not last_ids[n] then
      u = u + 1
      keys[u] = keys[n]
    end
  end
  are_new = u == #last_ids
  return u == 0 or redis_call('EXISTS', unpack(keys, 1, u)) == 0
end

-- Reads the next chunk. Returns whether there is one.
local function read_chunk()
  trim()
  chunk_read, free, free_at, before, owner_keys, marks, marks_before, held = 0, {}, 0, {}, {}, {}, {}, {}
  -- While markers lead to no claim, each chunk is larger than the chunk before. So a long run of
  -- such markers is passed over in few steps.
  chunk_size = math.min(math.max(chunk_size * 2, budget.claims_left), CHUNK_MAX, call.markers_max, call.markers_left)
  if chunk_size <= 0 then
    return false
  end
  local chunk = call.grouped and rare.groups.take(chunk_size) or redis_call('LRANGE', P .. K.objects_with_events, -chunk_size, '-1')
  chunk_read = #chunk
  if chunk_read == 0 then
    -- The number of names that are grouped was too high.
    return false
  end
  call.markers_max = call.markers_max - chunk_read
  local objects, places, keys, n, grouped = {}, {}, {}, 0, call.grouped
  for place = 0, chunk_read - 1 do
    local object = chunk[grouped and place + 1 or chunk_read - place]
    if not seen[object] then
      seen[object] = true
      local first = byte(object)
      if first == 123 and rare.names.is_foreign(object) then
        rare.quarantine.report_foreign(object)
      elseif first == 0 and rare.marks.is_mark(object) then
        marks[#marks + 1], marks_before[#marks_before + 1] = object, place
      else
        n = n + 1
        objects[n] = object
        places[n] = place
        keys[n] = P .. object .. OWNER
      end
    end
  end
  local none_untold = keep_free(objects, places, keys)
  -- Of the names that were grouped, held objects may be claimed without events. Other held objects
  -- matter only if events wait for them.
  if call.grouped then
    keep_held()
  end
  if chunk_size > budget.claims_left and not call.limited and not any_events() then
    free = {}
  end
  if not call.grouped then
    keep_held()
  end
  is_sound = ask_last_ids() and none_untold
  return true
end

-- Counts all markers of the chunk as used, and reads the next chunk. Returns whether there is one,
-- and whether the old chunk still had unused markers.
local function next_chunk()
  local looked = call.markers_used < chunk_read
  call.markers_used = chunk_read
  return read_chunk(), looked
end

-- Returns the next object without owner, its last id, the key of its owner and `is_sound`. If there
-- is none, returns nil and `dropped`, or nil alone if there was no marker to look at. The marker of
-- the object does not count as used yet.
local function next_object()
  local has_chunk, is_unused, looked = true, false, false
  while has_chunk do
    while free_at < #free do
      free_at = free_at + 1
      local object = free[free_at]
      -- This call may have quarantined the object or claimed it since it read the chunk.
      if not call.excluded[object] and not call.claimed[object] then
        call.markers_used = before[free_at]
        return object, last_ids[free_at], owner_keys[free_at], is_sound
      end
    end
    has_chunk, is_unused = next_chunk()
    looked = looked or is_unused
  end
  return nil, looked and 'dropped' or nil
end

-- Claims object `f` of the chunk for the slot, if it is held or may have a limit. Returns the
-- result for the object; nil if a held object stays due, because the reply is full.
local function claim_unusual(slot, object, f)
  local is_held = held[object]
  if call.limited then
    local admitted = rare.groups.admits(before[f] + 1, object, is_held)
    if admitted == 'moved' then
      -- The call may meet the name again, because its place has changed.
      seen[object] = nil
    end
    if admitted ~= true then
      return admitted
    end
  end
  if is_held then
    return rare.held.claim_grouped(slot, object)
  end
  return claim_object(slot, object, false, last_ids[f], 'markers', owner_keys[f], is_sound)
end

-- Claims the objects of markers for all free slots, if no held object can be due, or if the groups
-- take turns. `f`: the place of the object in its chunk. `used`: the number of markers of the chunk
-- that are used. Returns the result for the last object; nil if there was no marker to look at.
local function claim_all()
  local this, left, slots, n, excluded, claimed = call, budget, call.slots, call.slots_n, call.excluded, call.claimed
  local grouped, limited = call.grouped, call.limited
  local i, f, used, got, is_unused = 1, 0, 0, nil, nil
  begin()
  -- The chunk is in local variables, because Lua reads these faster.
  local objects, places, keys, lasts, sound = free, before, owner_keys, last_ids, is_sound
  while true do
    while i <= n and slots[i].is_busy do
      i = i + 1
    end
    if i > n or left.claims_left <= 0 or left.bytes_left <= 0 then
      break
    end
    f = f + 1
    local object, has_chunk = objects[f], true
    if not object then
      this.markers_used = used
      has_chunk, is_unused = next_chunk()
      objects, places, keys, lasts, sound = free, before, owner_keys, last_ids, is_sound
      f, used = 0, 0
      if not has_chunk then
        -- The markers after the last claim led nowhere, or this call may look at no further marker.
        return (is_unused or this.markers_left > 0) and 'dropped' or got
      end
    elseif not excluded[object] and not claimed[object] then
      -- The marker counts as used only after the claim. Until something else covers the object, its
      -- marker must stay.
      local place = places[f]
      this.markers_used = place
      local quarantined_before, is_held = this.quarantined_n, held[object]
      if limited or is_held then
        got = claim_unusual(slots[i], object, f)
      else
        got = claim_object(slots[i], object, false, lasts[f], 'markers', keys[f], sound)
      end
      if not got then
        break
      end
      used = place + 1
      if got ~= 'claimed' then
        count_drop(quarantined_before, got == 'moved' or got ~= 'stays' and is_held)
      elseif grouped then
        claimed[object] = true
        if limited then
          rare.share_limits.claimed()
        end
      end
    end
  end
  this.markers_used = used
  return got
end

return { begin = begin, next = next_object, claim_all = claim_all, trim = trim, count_drop = count_drop }
