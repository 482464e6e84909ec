-- ages (passing): how long the names in the lists of groups have waited. No claim depends on these
-- times.

-- The most fields that one command writes.
local PUSH_MAX = 1000

-- By group: its field in event.groups.times as far as it was read, or the parts of the field. The
-- groups whose times have changed.
local times, changed = {}, {}

-- Reads the times of groups. If the key has a wrong type, no times are known.
local function read(groups)
  if not groups[1] then
    return
  end
  local found = redis_try('HMGET', P .. K.event_groups_times, unpack(groups))
  for g, group in ipairs(groups) do
    times[group] = not found.err and found[g] or false
  end
end

-- Returns whether the call has read the times of a group.
local function is_read(group)
  return times[group] ~= nil
end

-- Returns the parts of a group's times; nil if they are unknown.
local function parts_of(group)
  local of = times[group]
  return type(of) == 'string' and rare.group.times_of(of) or type(of) == 'table' and of or nil
end

-- Returns the time of the newest mark in the list of a group; nil if it is unknown.
local function last_of(group)
  local of = times[group]
  return of and (type(of) == 'table' and of.last or tonumber(string.match(of, '^%d+'))) or nil
end

-- Stores the parts of a group's times until `write`.
local function put(group, of)
  times[group], changed[group] = of, true
end

-- Deletes the times of groups without names.
local function drop(groups)
  redis_try('HDEL', P .. K.event_groups_times, unpack(groups))
  for _, group in ipairs(groups) do
    times[group], changed[group] = nil, nil
  end
end

-- Writes the times that have changed. They are needed only to show the age of the oldest marker, so a
-- failure changes nothing else.
local function write()
  local fields = {}
  for group in pairs(changed) do
    local of = times[group]
    fields[#fields + 1], fields[#fields + 2] = group, string.format('%.0f %.0f %.0f', of.last, of.oldest, math.max(of.marks, 0))
  end
  for at = 1, #fields, PUSH_MAX do
    redis_try('HSET', P .. K.event_groups_times, unpack(fields, at, math.min(at + PUSH_MAX - 1, #fields)))
  end
  changed = {}
end

return { read = read, is_read = is_read, parts_of = parts_of, last_of = last_of, put = put, drop = drop, write = write }
