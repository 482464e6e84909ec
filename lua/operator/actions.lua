-- actions: the common parts of an operator's actions: rights, types, and the record of actions.
-- Uses: rights.missing text.beginning
local who, why = ARGV[2], ARGV[3]

-- Returns the reply for a missing right or a key of a wrong type; nil if there is neither. `...`:
-- pairs of a key and its type. Actions call this before their first write, because Redis does not
-- undo a script that fails halfway.
local function refused(...)
  local denied = M.rights.missing()
  if denied then
    return { 'denied', denied }
  end
  local types = { P .. K.operator_actions, 'stream', P .. K.objects_with_events, 'list', ... }
  for i = 1, #types, 2 do
    local found = call('TYPE', types[i]).ok
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
  return 'event', M.text.beginning(event, EVENT_BYTES_MAX), 'event_bytes', string.format('%d', #event)
end

-- Adds an action to the record. `...`: more fields and values.
local function note(action, object, id, ...)
  call('XADD', P .. K.operator_actions, 'MAXLEN', '~', '1000', '*', 'action', action, 'who', who, 'why', why, 'object', object, 'id', id, ...)
end

-- Makes a held object due now, and wakes a worker that waits for markers.
local function make_due(object)
  call('ZADD', P .. K.objects_held, '0', object)
  call('RPUSH', P .. K.objects_with_events, '')
end

return {
  who = who, why = why, EVENT_BYTES_MAX = EVENT_BYTES_MAX, refused = refused, event_fields = event_fields, note = note,
  make_due = make_due,
}
