-- emits: events that handlers have emitted or scheduled, and results that they have returned.
--
-- Emits and results are fields of OBJ:event.handled until the step that ends the event:
--   id         the id of the event
--   emit:ID    all emits of one handler: `PLACE EVENTS BYTES `, then for each event `NAME_BYTES
--              EVENT_BYTES `, the object's name and the event. PLACE is the handler's place among
--              the registered ones. A schedule: `sNAME_BYTES EVENT_BYTES KEY_BYTES MODE DUE `, the
--              object's name, the event and the key. MODE: `r` replaces, `t` keeps the time, `f`
--              keeps the first, `c` cancels (no event is set). DUE: `@MS` since 1970, or `+MS` after
--              the step that ends the event
--   result:ID  the result of one handler: the member `"ID":VALUE` of a JSON object

-- Returns whether a field of the hash has emits.
local function is_emit(field)
  return string.sub(field, 1, 5) == 'emit:'
end

-- Returns whether a field of the hash has a result.
local function is_result(field)
  return string.sub(field, 1, 7) == 'result:'
end

-- Returns `EVENTS BYTES` of a field with emits; '' if the value is invalid.
local function size_of(value)
  return string.match(value, '^%d+ (%d+ %d+) ') or ''
end

-- Returns the results of all handlers as one JSON object; nil if there is none. `kept`: fields and
-- values of the hash. Sorts the members, so that the same results give the same text.
local function results_of(kept)
  local members = {}
  for i = 1, #kept, 2 do
    if is_result(kept[i]) then
      members[#members + 1] = kept[i + 1]
    end
  end
  table.sort(members)
  return members[1] and '{' .. table.concat(members, ',') .. '}'
end

-- Parses the schedule at position `at` of the text. Returns the schedule, and the position after
-- it; nil if there is no valid schedule.
local function schedule_of(text, at)
  local name_bytes, event_bytes, key_bytes, mode, sign, ms, from = string.match(text, '^s(%d+) (%d+) (%d+) ([rtfc])([@+])(%d+) ()', at)
  if not from then
    return nil
  end
  local event_at = from + name_bytes
  local key_at = event_at + event_bytes
  local behind = key_at + key_bytes
  local schedule = { object = string.sub(text, from, event_at - 1), event = string.sub(text, event_at, key_at - 1), mode = mode }
  schedule.key, schedule.sign, schedule.ms = string.sub(text, key_at, behind - 1), sign, tonumber(ms)
  return schedule, behind
end

-- Parses the fields and values of the hash. Returns two values:
--   id     the event's id; 0 if absent
--   emits  {object, event, object, event, …, later = schedules or nil}: handlers in the order of
--          their places, the events of each in the order of its emits; nil if the hash is invalid
local function emits_of(kept)
  local id, texts, emits, n = 0, {}, {}, 0
  for i = 1, #kept, 2 do
    if kept[i] == 'id' then
      id = ids.parse(kept[i + 1]) or 0
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
      local event_at, schedule = from and from + name_bytes, nil
      if event_at then
        at = event_at + event_bytes
      else
        schedule, at = schedule_of(text, at)
      end
      if id == 0 or not of.at or not at or at > #text + 1 then
        return id, nil
      elseif schedule then
        emits.later = emits.later or {}
        emits.later[#emits.later + 1] = schedule
      else
        emits[n + 1], emits[n + 2] = string.sub(text, from, event_at - 1), string.sub(text, event_at, at - 1)
        n = n + 2
      end
    until at > #text
  end
  return id, emits
end

-- Returns the first key with a wrong type among the keys that these emits would be written to: the
-- key without prefix, and its type. Callers call this function before their first write.
local function wrong_key(emits)
  local seen = {}
  local function wrong(key, kind)
    local found = seen[key] or redis_call('TYPE', P .. key).ok
    seen[key] = found
    return found ~= kind and found ~= 'none' and found
  end
  for _, schedule in ipairs(emits.later or {}) do
    local hash = schedule.object .. K.events_scheduled_of
    for _, key in ipairs({ { hash, 'hash' }, { K.events_scheduled, 'zset' }, { K.events_scheduled_wake, 'zset' } }) do
      local found = wrong(key[1], key[2])
      if found then
        return key[1], found
      end
    end
  end
  for i = 1, #emits, 2 do
    local queue = emits[i] .. K.events
    local found = wrong(queue, 'list')
    if found then
      return queue, found
    end
  end
end

-- Returns the commands that `push` calls for these emits, as examples for `redis.acl_check_cmd`.
local function commands_of(emits)
  local commands, seen = { emits[1] and { 'LPUSH', P .. K.objects_with_events, 'v' } or nil }, {}
  for i = 1, #emits, 2 do
    local object = emits[i]
    commands[#commands + 1] = not seen[object] and { 'LPUSH', P .. object .. K.events, 'v' } or nil
    seen[object] = true
  end
  for _, later in ipairs(emits.later or {}) do
    local hash, index = P .. later.object .. K.events_scheduled_of, P .. K.events_scheduled
    if later.mode == 'c' then
      commands[#commands + 1], commands[#commands + 2] = { 'HDEL', hash, 'f' }, { 'ZREM', index, 'm' }
    else
      commands[#commands + 1], commands[#commands + 2] = { 'HSET', hash, 'f', 'v' }, { 'ZSCORE', index, 'm' }
      commands[#commands + 1], commands[#commands + 2] = { 'ZADD', index, '0', 'm' }, { 'ZADD', P .. K.events_scheduled_wake, '0', 'm' }
    end
  end
  return commands
end

-- Returns the first of these commands that the user may not call; nil if there is none.
local function denied_of(commands)
  for _, command in ipairs(commands) do
    if not redis.acl_check_cmd(unpack(command)) then
      return command[1]
    end
  end
end

-- A schedule that is due within this time wakes a worker, just as a schedule of a producer does.
local WAKE_MS = 60000

-- Schedules the events, and cancels schedules, as a producer does.
local function schedule_all(later)
  local now_ms, wakes = rare.time.now_ms(), false
  for _, schedule in ipairs(later) do
    local hash, member = P .. schedule.object .. K.events_scheduled_of, rare.schedules.member(schedule.object, schedule.key)
    local mode, index = schedule.mode, P .. K.events_scheduled
    if mode == 'c' then
      redis_call('HDEL', hash, schedule.key)
      redis_call('ZREM', index, member)
    else
      local due_ms = math.min(schedule.sign == '+' and now_ms + schedule.ms or schedule.ms, ids.MAX)
      local is_there = mode ~= 'r' and redis_call('ZSCORE', index, member)
      if not is_there or mode == 't' then
        redis_call('HSET', hash, schedule.key, schedule.event)
      end
      if not is_there then
        redis_call('ZADD', index, string.format('%.0f', due_ms), member)
        wakes = wakes or due_ms < now_ms + WAKE_MS
      end
    end
  end
  if wakes then
    redis_call('ZADD', P .. K.events_scheduled_wake, '0', 'wake')
  end
end

-- The most markers in one command: unpack cannot return much more values.
local MARKERS_PER_PUSH = 1000

-- Pushes the emitted events as a producer does, with one marker per object. Stores the schedules.
-- Returns the number of markers.
local function push_emits(emits)
  if emits.later then
    schedule_all(emits.later)
  end
  local marked, markers = {}, {}
  for i = 1, #emits, 2 do
    local object = emits[i]
    redis_call('LPUSH', P .. object .. K.events, emits[i + 1])
    if not marked[object] then
      marked[object], markers[#markers + 1] = true, object
    end
  end
  for i = 1, #markers, MARKERS_PER_PUSH do
    redis_call('LPUSH', P .. K.objects_with_events, unpack(markers, i, math.min(i + MARKERS_PER_PUSH - 1, #markers)))
  end
  return #markers
end

return {
  is_emit = is_emit, is_result = is_result, size_of = size_of, results_of = results_of, parse = emits_of,
  wrong_key = wrong_key, commands = commands_of, denied = denied_of, push = push_emits,
}
