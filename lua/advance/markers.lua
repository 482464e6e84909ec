-- markers: the objects to which markers lead.

-- The markers are read in chunks from the tail and trimmed by as many as were used. Of a chunk, only objects that nobody owns lead anywhere,
-- each of them once: who they are, how many markers come before, and their last ids.
local chunk_size, chunk_read = 0, 0
local free, free_at, before, last_ids, sound = {}, 0, {}, {}, false
-- Asked about once in a call. The empty name only wakes.
local seen = { [''] = true }

local function trim_markers()
  if markers_used > 0 then
    call('LTRIM', P .. objects_with_events, 0, -1 - markers_used)
    markers_left = markers_left - markers_used
    progress, markers_used = true, 0
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
    if not seen[object] and is_foreign(object) then
      seen[object] = true
      report_foreign(object)
    elseif not seen[object] then
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
  local looked = markers_used < chunk_read
  repeat
    while free_at < #free do
      free_at = free_at + 1
      local object = free[free_at]
      -- What a chunk was told of an object before it was put aside does not hold any more.
      if not put_aside[object] then
        markers_used = before[free_at]
        local got = own(slot, object, false, last_ids[free_at], sound, false)
        -- Only now: a marker is there until something else covers its object.
        markers_used = markers_used + 1
        return got == 'claimed' and got or 'dropped'
      end
    end
    markers_used = chunk_read
    local read = read_chunk()
    looked = looked or read
  until not read
  return looked and 'dropped' or nil
end

return { claim = claim_marker, trim = trim_markers }
