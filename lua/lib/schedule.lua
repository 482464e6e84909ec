-- schedule: the members of events.scheduled, `OBJECT LF KEY`. A key has no line feed.

-- Returns the object and the key of a member; nothing if it has no line feed.
local function parse(member)
  return string.match(member, '^(.*)\n([^\n]*)$')
end

-- Returns the member of a schedule.
local function member(object, key)
  return object .. '\n' .. key
end

return { parse = parse, member = member }
