-- emits: events that handlers have emitted and results that they have returned.
--
-- They are fields of OBJ:event.handled until the step that ends the event:
--   id         the id of the event
--   emit:ID    all emits of one handler: `PLACE EVENTS BYTES `, then for each event `NAME_BYTES
--              EVENT_BYTES `, the object's name and the event. PLACE is the handler's place among
--              the registered ones
--   result:ID  the result of one handler: the member `"ID":VALUE` of a JSON object
-- Uses: ids.parse

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
-- values of the hash. The members are sorted: the same results give the same text.
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

-- Parses the fields and values of the hash. Returns two values:
--   id     the event's id; 0 if absent
--   emits  {object, event, object, event, …}: handlers in the order of their places, the events of
--          each in the order of its emits; nil if the hash is invalid
local function emits_of(kept)
  local id, texts, emits, n = 0, {}, {}, 0
  for i = 1, #kept, 2 do
    if kept[i] == 'id' then
      id = M.ids.parse(kept[i + 1]) or 0
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

-- Returns the first queue of these objects with a wrong type: its key without prefix, and its type.
-- Callers ask before their first write.
local function wrong_queue(emits)
  local seen = {}
  for i = 1, #emits, 2 do
    local object = emits[i]
    local found = seen[object] or call('TYPE', P .. object .. K.events).ok
    if found ~= 'list' and found ~= 'none' then
      return object .. K.events, found
    end
    seen[object] = found
  end
end

-- Most markers in one command, because of the limit of unpack.
local MARKERS_PER_PUSH = 1000

-- Pushes the events as a frontend does, with one marker per object. Returns the number of markers.
local function push_emits(emits)
  local marked, markers = {}, {}
  for i = 1, #emits, 2 do
    local object = emits[i]
    call('LPUSH', P .. object .. K.events, emits[i + 1])
    if not marked[object] then
      marked[object], markers[#markers + 1] = true, object
    end
  end
  for i = 1, #markers, MARKERS_PER_PUSH do
    call('LPUSH', P .. K.objects_with_events, unpack(markers, i, math.min(i + MARKERS_PER_PUSH - 1, #markers)))
  end
  return #markers
end

return {
  is_emit = is_emit, is_result = is_result, size_of = size_of, results_of = results_of, parse = emits_of,
  wrong_queue = wrong_queue, push = push_emits,
}
