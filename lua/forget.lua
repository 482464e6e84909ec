-- forget: deletes the last ids of idle objects, and with them all that remains of these objects.
--
-- Purpose   Deletes OBJ:last.event.id of every named object that is idle: it has no events, no
--           owner and no schedules, and is not held. Changes no other object. A marker, or a name
--           in a worker's list, is no reason to keep an object without events.
-- Keys      KEYS[1] objects.held (zset, read)
--           objects.paused (zset, read)
--           OBJ:last.event.id (string), OBJ:event.handled (hash): read and deleted
--           OBJ:event.errors (list), OBJ:event.key (string): deleted
--           OBJ:event.worker (string), OBJ:events (list): read
--           OBJ:events.scheduled (hash, read)
--           OBJ:events.held, OBJ:events.held.id: whether they exist
-- Arguments prefix
--           objects (1 to 250)
-- Replies   {'looked', word, detail, …}, a pair for each object:
--             forgotten LAST  the last id is deleted
--             unknown ''      the object has no last id; a marker may exist
--             queued EVENTS   the number of its events
--             owned W         its owner
--             held ''
--             scheduled N     the number of its schedules
--             reserved KEY    a key with emits that were never pushed
--             wrong KEY       a key of a wrong type
-- Keeps     I1 to I6. The next id of the object comes from next.event.id, so it is above all
--           earlier ids of the object. Its next event has `prev` 0, so no receiver takes it for
--           early
-- Cost      about 14 commands per object
-- Uses: emits.is_emit
local objects = { unpack(ARGV, 2) }

-- Returns whether the key exists.
local function is_there(key)
  return call('EXISTS', key) == 1
end

-- Returns the word and the detail of the reply for an object that is kept; nil if it is idle.
local function kept_by(object)
  local base = P .. object
  for _, part in ipairs({ { K.events, 'list' }, { K.event_worker, 'string' }, { K.last_event_id, 'string' } }) do
    local kind = call('TYPE', base .. part[1]).ok
    if kind ~= part[2] and kind ~= 'none' then
      return 'wrong', object .. part[1]
    end
  end
  local owner = call('GET', base .. K.event_worker)
  if owner and owner ~= 'held' then
    return 'owned', owner
  elseif owner or is_there(base .. K.events_held) or is_there(base .. K.events_held_id) then
    return 'held', ''
  -- If objects.held or objects.paused has a wrong type, this raises at the first object that gets
  -- here, before any deletion.
  elseif call('ZSCORE', P .. K.objects_held, object) or call('ZSCORE', P .. K.objects_paused, object) then
    return 'held', ''
  elseif is_there(base .. K.events) then
    return 'queued', call('LLEN', base .. K.events)
  end
  local schedules = try('HLEN', base .. K.events_scheduled_of)
  if type(schedules) == 'table' then
    return 'wrong', object .. K.events_scheduled_of
  elseif schedules > 0 then
    return 'scheduled', schedules
  end
  -- The step that ends an event also pushes its emits. This object has no event in hand, so emits
  -- that are still stored were left behind, and must not be lost.
  for _, field in ipairs(try('HKEYS', base .. K.event_handled)) do
    if M.emits.is_emit(field) then
      return 'reserved', object .. K.event_handled
    end
  end
end

local reply = { 'looked' }
for _, object in ipairs(objects) do
  local word, detail = kept_by(object)
  if not word then
    local last = call('GET', P .. object .. K.last_event_id)
    word, detail = last and 'forgotten' or 'unknown', last or ''
    -- Apart from the last id, these keys belong to an event in hand. The object has no event in
    -- hand.
    for _, key in ipairs(OBJECT_REMAINS) do
      call('DEL', P .. object .. key)
    end
  end
  reply[#reply + 1] = word
  reply[#reply + 1] = detail
end
return reply
