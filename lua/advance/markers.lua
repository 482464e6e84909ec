-- markers: finds the objects to which markers lead.
-- Uses: aside.report_foreign groups.take groups.trim marks.is_mark marks.met_all
-- Uses: missing.is_held names.is_foreign

-- The markers are read in chunks from the tail, and trimmed when they are used. From a chunk the
-- call needs each object without an owner, once. `free` has the names of these objects, `before`
-- the numbers of markers before them, `owner_keys` the keys of their owners, and `last_ids` their
-- last ids. `source` is the argument of `own` (lua/advance.lua). If the groups have turns, the
-- chunks are names that were set aside, and `held` has the held objects among them.
local byte, chunk_size, chunk_read = string.byte, 0, 0
local held = {}
local free, free_at, before, owner_keys, last_ids, source = {}, 0, {}, {}, {}, 'markers'
-- Names that the call has met. The empty name only wakes a worker.
local seen = { [''] = true }
-- Marks of the chunk, and the numbers of markers before them.
local marks, marks_before = {}, {}

-- Trims the markers that are used.
local function trim()
  if C.grouped then
    M.groups.trim(C.markers_used)
    C.markers_left = C.waiting
    C.progress, C.markers_used = C.progress or C.markers_used > 0, 0
  elseif C.markers_used > 0 then
    call('LTRIM', P .. K.objects_with_events, '0', -1 - C.markers_used)
    if marks[1] then
      local used = {}
      for n, mark in ipairs(marks) do
        used[#used + 1] = marks_before[n] < C.markers_used and mark or nil
      end
      M.marks.met_all(used)
    end
    C.markers_left = C.markers_left - C.markers_used
    C.progress, C.markers_used = true, 0
  end
end

-- Stores the objects without an owner in `free`. Returns whether every owner key that MGET returned
-- as nil is really absent: MGET also returns nil for a key of a wrong type.
local function keep_free(objects, places, keys)
  local owned = #objects > 0 and call('EXISTS', unpack(keys)) or 0
  if owned == 0 then
    free, before, owner_keys = objects, places, keys
    return true
  end
  for n, owner in ipairs(call('MGET', unpack(keys))) do
    if owner then
      owned = owned - 1
    end
    if not owner or C.grouped and owner == 'held' then
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

-- Finds the held objects in `free` whose owner keys were evicted or have a wrong type. Their held
-- batches must still come before their later events. If their names were set aside, they can be
-- claimed now. Costs one command, and only while objects are held.
local function keep_held()
  if not free[1] or not C.has_held and not C.held_changed then
    return
  end
  local scores = call('ZMSCORE', P .. K.objects_held, unpack(free))
  for f = #scores, 1, -1 do
    local object, score = free[f], scores[f]
    if score and not held[object] then
      if C.grouped and tonumber(score) < 0 then
        held[object] = 'held'
      elseif not C.claimed[object] and M.missing.is_held(object) then
        drop(f)
      end
    end
  end
end

-- Returns whether any of these objects has events. The call asks only if the markers before led to
-- no claim. In other cases the question would cost as much as it saves.
local function any_events()
  local queues = {}
  if next(held) then
    return true
  end
  for n, object in ipairs(free) do
    queues[n] = P .. object .. K.events
  end
  return #queues > 0 and call('EXISTS', unpack(queues)) > 0
end

-- Reads the last ids of these objects. Returns whether every last id that MGET returned as nil is
-- really absent.
local function ask_last_ids()
  local keys, untold, u = {}, {}, 0
  for n = 1, #free do
    keys[n] = P .. free[n] .. K.last_event_id
  end
  last_ids = keys[1] and call('MGET', unpack(keys)) or {}
  for n = 1, #last_ids do
    if not last_ids[n] then
      u = u + 1
      untold[u] = keys[n]
    end
  end
  return u == 0 or call('EXISTS', unpack(untold)) == 0
end

-- Reads the next chunk. Returns whether there is one.
local function read_chunk()
  trim()
  chunk_read, free, free_at, before, owner_keys, marks, marks_before, held = 0, {}, 0, {}, {}, {}, {}, {}
  -- While markers lead to no claim, each chunk is larger than the chunk before. So a long run of
  -- such markers is passed over in few steps.
  chunk_size = math.min(math.max(chunk_size * 2, C.claims_left), 512, C.markers_max, C.markers_left)
  if chunk_size <= 0 then
    return false
  end
  local chunk = C.grouped and M.groups.take(chunk_size) or call('LRANGE', P .. K.objects_with_events, -chunk_size, '-1')
  chunk_read = #chunk
  if chunk_read == 0 then
    -- The number of names that are set aside was too high.
    return false
  end
  C.markers_max = C.markers_max - chunk_read
  local objects, places, keys, n = {}, {}, {}, 0
  for place = 0, chunk_read - 1 do
    local object = chunk[C.grouped and place + 1 or chunk_read - place]
    if not seen[object] then
      seen[object] = true
      local first = byte(object)
      if first == 123 and M.names.is_foreign(object) then
        M.aside.report_foreign(object)
      elseif first == 0 and M.marks.is_mark(object) then
        marks[#marks + 1], marks_before[#marks_before + 1] = object, place
      else
        n = n + 1
        objects[n], places[n], keys[n] = object, place, P .. object .. K.event_worker
      end
    end
  end
  local none_untold = keep_free(objects, places, keys)
  keep_held()
  if chunk_size > C.claims_left and not C.limited and not any_events() then
    free = {}
  end
  source = ask_last_ids() and none_untold and 'sound markers' or 'markers'
  return true
end

-- Counts all markers of the chunk as used, and reads the next chunk. Returns `free`, `before`,
-- `last_ids`, `owner_keys`, `source` and `held` of the new chunk. If there is no new chunk, returns
-- nil, and whether the old chunk still had unused markers.
local function next_chunk()
  local looked = C.markers_used < chunk_read
  C.markers_used = chunk_read
  if read_chunk() then
    return free, before, last_ids, owner_keys, source, held
  end
  return nil, looked
end

-- Returns the next object without owner, its last id, its source and the key of its owner. If there
-- is none, returns nil and `dropped`, or nil alone if there was no marker to look at. The marker of
-- the object does not count as used yet.
local function next_object()
  local looked = false
  repeat
    while free_at < #free do
      free_at = free_at + 1
      local object = free[free_at]
      -- This call may have put the object aside or claimed it since it read the chunk.
      if not C.put_aside[object] and not C.claimed[object] then
        C.markers_used = before[free_at]
        return object, last_ids[free_at], source, owner_keys[free_at]
      end
    end
    looked = looked or C.markers_used < chunk_read
    local read = next_chunk()
    looked = looked or read
  until not read
  return nil, looked and 'dropped' or nil
end

-- Lets the call meet a name again, because its place has changed.
local function forget(object)
  seen[object] = nil
end

return { next = next_object, forget = forget, next_chunk = next_chunk, trim = trim }
