-- markers: the objects to which markers lead.
-- Uses: aside.report_foreign names.is_foreign

-- The markers are read in chunks from the tail and trimmed by as many as were used. Of a chunk,
-- only objects that nobody owns lead anywhere, each of them once: who they are, how many markers
-- come before, and their last ids.
local chunk_size, chunk_read = 0, 0
local free, free_at, before, last_ids, sound = {}, 0, {}, {}, false
-- Asked about once in a call. The empty name only wakes.
local seen = { [''] = true }

-- Trims the markers that are used.
local function trim()
  if C.markers_used > 0 then
    call('LTRIM', P .. K.objects_with_events, 0, -1 - C.markers_used)
    C.markers_left = C.markers_left - C.markers_used
    C.progress, C.markers_used = true, 0
  end
end

-- Leaves those that nobody owns. Returns whether nobody's key is there: MGET tells nothing of a key
-- of a wrong type either.
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

-- Returns whether any of those that nobody owns has events. Asked only where markers before have
-- led nowhere: it costs what it spares elsewhere.
local function any_events()
  local queues = {}
  for n, object in ipairs(free) do
    queues[n] = P .. object .. K.events
  end
  return #queues > 0 and call('EXISTS', unpack(queues)) > 0
end

-- Asks for the last ids of those that nobody owns. Returns whether every key that told nothing is
-- not there.
local function ask_last_ids()
  local keys, untold = {}, {}
  for n, object in ipairs(free) do
    keys[n] = P .. object .. K.last_event_id
  end
  last_ids = #keys > 0 and call('MGET', unpack(keys)) or {}
  for n, last in ipairs(last_ids) do
    untold[#untold + 1] = not last and keys[n] or nil
  end
  return #untold == 0 or call('EXISTS', unpack(untold)) == 0
end

-- Reads the next chunk, once the one before is used up. Returns whether there is one.
local function read_chunk()
  trim()
  chunk_read, free, free_at, before = 0, {}, 0, {}
  -- A run of markers that lead nowhere is passed over in larger and larger strides.
  chunk_size = math.min(math.max(chunk_size * 2, C.claims_left), 512, C.markers_max, C.markers_left)
  if chunk_size <= 0 then
    return false
  end
  local chunk = call('LRANGE', P .. K.objects_with_events, -chunk_size, -1)
  chunk_read = #chunk
  C.markers_max = C.markers_max - chunk_read
  local objects, places, owner_keys, n = {}, {}, {}, 0
  for k = chunk_read, 1, -1 do
    local object = chunk[k]
    if not seen[object] then
      seen[object] = true
      if string.byte(object) == 123 and M.names.is_foreign(object) then
        M.aside.report_foreign(object)
      else
        n = n + 1
        objects[n], places[n], owner_keys[n] = object, chunk_read - k, P .. object .. K.event_worker
      end
    end
  end
  local none_untold = keep_free(objects, places, owner_keys)
  if chunk_size > C.claims_left and not any_events() then
    free = {}
  end
  sound = ask_last_ids() and none_untold
  return true
end

-- Returns the next object that a marker leads to and that nobody owns, its last id, and whether
-- every key that told nothing is not there. If there is none, returns nil and `dropped`, or nil
-- alone if there was no marker to look at. The marker of the object is not among those used.
local function next_object()
  local looked = C.markers_used < chunk_read
  repeat
    while free_at < #free do
      free_at = free_at + 1
      local object = free[free_at]
      -- What a chunk was told of an object before it was put aside, or claimed, does not hold any
      -- more.
      if not C.put_aside[object] and not C.claimed[object] then
        C.markers_used = before[free_at]
        return object, last_ids[free_at], sound
      end
    end
    C.markers_used = chunk_read
    local read = read_chunk()
    looked = looked or read
  until not read
  return nil, looked and 'dropped' or nil
end

return { next = next_object, trim = trim }
