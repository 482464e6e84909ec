-- actions: the common parts of an operator's actions: rights, types, and the record of actions.
local who, why = ARGV[2], ARGV[3]

-- Returns the reply for a missing right or a key of a wrong type; nil if there is neither. `...`:
-- pairs of a key and its type. Actions call this before their first write, because Redis does not
-- undo a script that fails halfway.
local function refused(...)
  local denied = rare.rights.missing()
  if denied then
    return { 'denied', denied }
  end
  local types = { P .. K.operator_actions, 'stream', P .. K.objects_with_events, 'list', ... }
  for i = 1, #types, 2 do
    local found = redis_call('TYPE', types[i]).ok
    if found ~= types[i + 1] and found ~= 'none' then
      return { 'wrong_type', types[i], found }
    end
  end
end

-- The most bytes of an event that the record of an action has. With whole events, 1,000 records
-- could have a gigabyte.
local EVENT_BYTES_MAX = 8192

-- Returns the fields that record an event: the whole event if it is short, else its beginning and
-- its length.
local function event_fields(event)
  if #event <= EVENT_BYTES_MAX then
    return 'event', event
  end
  return 'event', rare.text.beginning(event, EVENT_BYTES_MAX), 'event_bytes', string.format('%d', #event)
end

-- Adds an action to the record. `...`: more fields and values. Returns the id of the row.
local function note(action, object, id, ...)
  return redis_call('XADD', P .. K.operator_actions, 'MAXLEN', '~', '1000', '*', 'action', action, 'who', who, 'why', why, 'object', object, 'id', id, ...)
end

-- Records a step of an action on many objects; nothing if `count`, the number of its subjects, is 0.
-- Returns the id of the row, or ''. The steps of an action share one row: each step replaces the row
-- of the step before. So an action on any number of objects leaves the rows of other actions, and
-- its row says what is done even if the caller dies.
--   record       id of the row of the step before, or ''; a blank; the selected objects: a name, a
--                prefix with `*`, or `*` for all. If the row is gone, or belongs to another action,
--                the step begins a new row
--   first, last  the first and the last subject of the step
--   ...          more fields and values
local function note_many(record, action, count, first, last, ...)
  local row, selected = string.match(record, '^(%S*) (.*)$')
  if count == 0 then
    return row
  end
  local began_ms
  local entry = row ~= '' and redis_call('XRANGE', P .. K.operator_actions, row, row)[1]
  if entry then
    local before = {}
    for i = 1, #entry[2], 2 do
      before[entry[2][i]] = entry[2][i + 1]
    end
    local sum = tonumber(before.count)
    if sum and before.action == action and before.who == who then
      redis_call('XDEL', P .. K.operator_actions, row)
      count, first = count + sum, before.first or first
      began_ms = before.began_ms or string.match(row, '^%d+')
    end
  end
  local fields = { 'count', string.format('%d', count), 'first', first, 'last', last, ... }
  if began_ms then
    fields[#fields + 1], fields[#fields + 2] = 'began_ms', began_ms
  end
  return note(action, selected, '', unpack(fields))
end

-- Makes a held object due now, and wakes a worker that waits for markers.
local function make_due(object)
  redis_call('ZADD', P .. K.objects_held, '0', object)
  redis_call('RPUSH', P .. K.objects_with_events, '')
end

return {
  who = who, why = why, EVENT_BYTES_MAX = EVENT_BYTES_MAX, refused = refused, event_fields = event_fields, note = note,
  note_many = note_many, make_due = make_due,
}
