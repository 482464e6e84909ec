-- schedule: the members of events.scheduled, `OBJECT LF KEY`. A key has no line feed.

-- The bytes of events after which a scan stops. HSCAN returns the events, too.
local SCAN_BYTES, AT_ONCE = 1048576, '1'

-- Returns the object and the key of a member; nothing if it has no line feed.
local function parse(member)
  return string.match(member, '^(.*)\n([^\n]*)$')
end

-- Returns the member of a schedule.
local function member(object, key)
  return object .. '\n' .. key
end

-- Returns keys of a hash of schedules from a cursor of HSCAN on, about `count`, and the next cursor
-- ('0': the end).
local function scan(hash, cursor, count)
  local keys, bytes = {}, 0
  repeat
    local found = call('HSCAN', hash, cursor, 'COUNT', AT_ONCE)
    cursor = found[1]
    for i = 1, #found[2], 2 do
      keys[#keys + 1], bytes = found[2][i], bytes + #found[2][i + 1]
    end
  until cursor == '0' or #keys >= count or bytes >= SCAN_BYTES
  return keys, cursor
end

return { parse = parse, member = member, scan = scan }
