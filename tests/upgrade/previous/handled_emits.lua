#!lua
local WORKER = 'event.worker:'
local events = ':events'
local last_event_id = ':last.event.id'
local event_worker = ':event.worker'
local data = ':data'
local events_held = ':events.held'
local events_held_id = ':events.held.id'
local event_handled = ':event.handled'
local event_errors = ':event.errors'
local events_scheduled_of = ':events.scheduled'
local worker_object = ':object'
local worker_event = ':event'
local worker_event_id = ':event.id'
local worker_lease = ':lease'
local objects_with_events = 'objects.with.events'
local objects_held = 'objects.held'
local objects_paused = 'objects.paused'
local next_event_id = 'next.event.id'
local event_workers = 'event.workers'
local events_dead = 'events.dead'
local events_scheduled = 'events.scheduled'
local event_rules = 'event.rules'
local event_log = 'event.log'
local event_projections = 'event.projections'
local operator_actions = 'operator.actions'
local meta = 'seriatim.meta'
-- prefix: every script's first argument is what all keys begin with.
local P = ARGV[1]
-- ids: whole numbers from 0 to 2^53 - 1, as text.
local ID_MAX = 9007199254740991

-- The number, or nil where the text is none. `tonumber` alone takes `nan`, `1e5`, `0x10` and ` 7` for numbers.
local function id_of(text)
  local id = #text <= 16 and string.find(text, '^%d+$') and tonumber(text)
  return id and id <= ID_MAX and id or nil
end
-- fence: every write of a worker process begins here.

local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Answers nil where the lease of `name` holds `token`; else the reply to give before anything is touched:
-- `lapsed` where the lease is gone and nobody took the name since, `fenced` with the present lease otherwise.
local function fence(name, token)
  local lease = redis.call('GET', P .. WORKER .. name .. worker_lease)
  if lease and string.sub(lease, 1, #token) == token then
    return nil
  end
  if not lease then
    local value = redis.call('HGET', P .. event_workers, name)
    if value and string.match(value, '^%d+ (%S+)') == token then
      return { 'lapsed' }
    end
  end
  return { 'fenced', lease or '' }
end
-- emits: what the handlers of an event have emitted is kept beside what they have finished, and pushed in the step that ends the event.
-- A field `emit:ID` of OBJ:event.handled is all that one handler has emitted: `PLACE EVENTS BYTES `, then for each event `NAME_BYTES EVENT_BYTES `,
-- the object's name and the event. PLACE is the handler's place among those that are registered.

local function is_emit(field)
  return string.sub(field, 1, 5) == 'emit:'
end

-- Takes the fields and values of the hash apart. Answers the event's id, 0 where there is none, and {object, event, object, event, …}: handlers in the order
-- of their places, the events of each as it emitted them. Without these it is a hash that cannot be read.
local function emits_of(kept)
  local id, texts, emits, n = 0, {}, {}, 0
  for i = 1, #kept, 2 do
    if kept[i] == 'id' then
      id = id_of(kept[i + 1]) or 0
    elseif is_emit(kept[i]) then
      local place, at = string.match(kept[i + 1], '^(%d+) %d+ %d+ ()')
      texts[#texts + 1] = { place = tonumber(place) or 0, field = kept[i], text = kept[i + 1], at = at }
    end
  end
  table.sort(texts, function(a, b)
    return a.place < b.place or a.place == b.place and a.field < b.field
  end)
  for _, of in ipairs(texts) do
    local text, at = of.text, of.at
    repeat
      local name_bytes, event_bytes, from = string.match(text, '^(%d+) (%d+) ()', at)
      local event_at = from and from + name_bytes
      at = event_at and event_at + event_bytes
      if id == 0 or not of.at or not at or at > #text + 1 then
        return id, nil
      end
      emits[n + 1], emits[n + 2] = string.sub(text, from, event_at - 1), string.sub(text, event_at, at - 1)
      n = n + 2
    until at > #text
  end
  return id, emits
end

-- The first of their queues that is none, without the prefix, and its type. Asked before anything is written.
local function wrong_queue(emits)
  local seen = {}
  for i = 1, #emits, 2 do
    local object = emits[i]
    local found = seen[object] or redis.call('TYPE', P .. object .. events).ok
    if found ~= 'list' and found ~= 'none' then
      return object .. events, found
    end
    seen[object] = found
  end
end

-- Pushes them as a frontend does, with one marker for each object. Answers how many markers.
local function push_emits(emits)
  local marked, markers = {}, 0
  for i = 1, #emits, 2 do
    local object = emits[i]
    redis.call('LPUSH', P .. object .. events, emits[i + 1])
    if not marked[object] then
      redis.call('LPUSH', P .. objects_with_events, object)
      marked[object], markers = true, markers + 1
    end
  end
  return markers
end
-- handled: keeps what handlers have finished of an event in a slot's hands, until that event is committed; and tells what is kept.
--
-- Purpose   A handler that has finished does not run again where the event does: after a failure of another one, or a death. What it has emitted is kept
--           with it, and pushed where the event ends. Repeating a call changes nothing. What is kept of another event is written over, but not by one
--           that comes before it in the same batch, and not where something of it is still to be pushed.
-- Keys      KEYS[1] event.worker:NAME:lease (string, read); event.workers (hash, read), event.worker:W:event.id (string, read),
--           event.worker:W:event (list, read), OBJ:event.worker (string, read), OBJ:event.handled (hash, read and write)
-- Arguments prefix; name; token (UUID); slot; object; tag of its batch; then nothing, to be told what is kept, or
--           the id of an event of the batch and what is finished, fields and values (1 to 1000 pairs): `handler:ID` and `once:SUBTASK` to `1`, and
--           with a handler that has emitted `emit:ID` (lib/emits.lua), for which Redis must have memory
-- Replies   {'kept', field, value, …}: all of the hash where nothing is to be written, but of `emit:ID` only how many events, and their bytes; else no field
--           | {'other'}: the slot has another batch, or that of another object, or a later event is under way
--           | {'unpushed', id}: of that event something is still to be pushed
--           | {'lapsed'} | {'fenced', lease}
-- Keeps     I1 to I6: touches nothing else
-- Cost      about 6 commands
local name, token, slot, object, tag, id = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local FIELDS = 8

local refused = fence(name, token)
if refused then
  return refused
end
local w = name .. '.' .. slot
local at, handled = P .. WORKER .. w, P .. object .. event_handled
local found = redis.call('MGET', P .. object .. event_worker, at .. worker_event_id)
if found[1] ~= w or found[2] ~= tag then
  return { 'other' }
end
if not id then
  -- Not by unpack, which takes some thousands and no more.
  local reply = { 'kept' }
  for i, text in ipairs(redis.call('HGETALL', handled)) do
    local of_emit = i % 2 == 0 and is_emit(reply[i])
    reply[i + 1] = of_emit and (string.match(text, '^%d+ (%d+ %d+) ') or '') or text
  end
  return reply
end

local kept = redis.call('HGET', handled, 'id')
if kept ~= id then
  local first, later = id_of(string.match(tag, '^%d+')), kept and id_of(kept) or 0
  if later > id_of(id) and later < first + redis.call('LLEN', at .. worker_event) then
    return { 'other' }
  end
  for _, field in ipairs(redis.call('HGETALL', handled)) do
    if is_emit(field) then
      return { 'unpushed', kept or '' }
    end
  end
  redis.call('DEL', handled)
end
redis.call('HSET', handled, 'id', id, unpack(ARGV, FIELDS))
return { 'kept' }
