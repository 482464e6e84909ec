-- actions: what all actions of an operator share: rights, and the record of who did what and why.
-- Uses: text.beginning
local who, why = ARGV[2], ARGV[3]

-- Whatever could fail in the middle, because the user may not or a key has a wrong type, is asked
-- for before anything is written. Answers the reply to give, or nil.
local function refused(...)
  local key = P .. K.next_event_id
  local needed = {
    { 'DEL', key }, { 'HDEL', key, 'f' }, { 'HGET', key, 'f' }, { 'HGETALL', key }, { 'HLEN', key }, { 'HMGET', key, 'f' }, { 'HSET', key, 'f', 'v' },
    { 'LINDEX', key, '0' }, { 'LLEN', key }, { 'LPUSH', key, 'v' }, { 'MGET', key }, { 'RPOP', key }, { 'RPUSH', key, 'v' },
    { 'SET', key, 'v' }, { 'TIME' }, { 'TYPE', key }, { 'XADD', key, '*', 'f', 'v' }, { 'XDEL', key, '0-1' }, { 'XRANGE', key, '-', '+' },
    { 'ZADD', key, '0', 'm' }, { 'ZSCORE', key, 'm' },
  }
  for _, command in ipairs(needed) do
    if not redis.acl_check_cmd(unpack(command)) then
      return { 'denied', command[1] }
    end
  end
  local types = { P .. K.operator_actions, 'stream', P .. K.objects_with_events, 'list', ... }
  for i = 1, #types, 2 do
    local found = call('TYPE', types[i]).ok
    if found ~= types[i + 1] and found ~= 'none' then
      return { 'wrong_type', types[i], found }
    end
  end
end

-- Of an event so many bytes are kept in an action: 1,000 actions with whole events could have a
-- gigabyte.
local EVENT_BYTES_MAX = 8192

-- The fields of an event in an action: all of a short one, else its beginning and its length.
local function event_fields(event)
  if #event <= EVENT_BYTES_MAX then
    return 'event', event
  end
  return 'event', M.text.beginning(event, EVENT_BYTES_MAX), 'event_bytes', string.format('%d', #event)
end

-- Keeps what was done; further fields and values may follow.
local function note(action, object, id, ...)
  call('XADD', P .. K.operator_actions, 'MAXLEN', '~', '1000', '*', 'action', action, 'who', who, 'why', why, 'object', object, 'id', id, ...)
end

-- Makes a held object due at once, and wakes a worker that waits for markers.
local function make_due(object)
  call('ZADD', P .. K.objects_held, '0', object)
  call('RPUSH', P .. K.objects_with_events, '')
end

return { who = who, why = why, EVENT_BYTES_MAX = EVENT_BYTES_MAX, refused = refused, event_fields = event_fields, note = note, make_due = make_due }
