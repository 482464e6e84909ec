-- forget: the last ids of idle objects go, and with them all that remains of these objects.
--
-- Purpose   Deletes OBJ:last.event.id of every object named that is idle: it has no events, no
--           owner, is not held, and no reserved key speaks of it. All others stay as they are. A
--           marker, or a name in a worker's list, without events leads nowhere and keeps nothing.
-- Keys      KEYS[1] objects.held (zset, read); objects.paused (zset, read); of the objects
--           OBJ:last.event.id (string, read and deleted), OBJ:event.handled (hash, read and
--           deleted), OBJ:event.errors (deleted), OBJ:event.worker (string, read), OBJ:events
--           (list, read), and whether OBJ:events.held, OBJ:events.held.id or OBJ:events.scheduled
--           are there
-- Arguments prefix; objects (1 to 250)
-- Replies   {'looked', word, detail, …}, a pair for each object:
--             forgotten LAST | unknown '' | queued EVENTS | owned W | held '' | reserved KEY |
--             wrong KEY
--           A marker may be all there is of an `unknown` one. `wrong` names a key of a wrong type.
-- Keeps     I1 to I6: ids go on from next.event.id, so that the object's next one is above all its
--           ids before, and its `prev`, 0, is early for nobody
-- Cost      about 14 commands per object
-- Uses: emits.is_emit
local objects = { unpack(ARGV, 2) }

local function is_there(key)
  return call('EXISTS', key) == 1
end

-- What keeps the object, and more about that; nothing where it is idle.
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
  -- One of these of a wrong type fails here, for the first idle object: before anything is deleted.
  elseif call('ZSCORE', P .. K.objects_held, object) or call('ZSCORE', P .. K.objects_paused, object) then
    return 'held', ''
  elseif is_there(base .. K.events) then
    return 'queued', call('LLEN', base .. K.events)
  end
  if is_there(base .. K.events_scheduled_of) then
    return 'reserved', object .. K.events_scheduled_of
  end
  -- What handlers have emitted is pushed with the end of their event; should it be left behind all
  -- the same, it must not be lost.
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
    -- What handlers have finished of an event that is in nobody's hands any more speaks of nothing.
    call('DEL', P .. object .. K.event_handled)
    -- So do errors of one.
    call('DEL', P .. object .. K.event_errors)
    call('DEL', P .. object .. K.last_event_id)
  end
  reply[#reply + 1] = word
  reply[#reply + 1] = detail
end
return reply
