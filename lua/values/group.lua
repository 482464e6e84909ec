-- group: the groups of objects, and the names of objects that wait for the turn of their group.
--
-- The group of an object is the first parts of its name; parts end at colons. If more objects wait
-- than a call can claim, the call groups their names, each in the list of its group.
--   event.groups (zset)            the groups with a list. The score is the group's pass: the
--                                  number of objects claimed from the list, divided by the group's
--                                  weight. The group with the lowest pass is next. Each priority
--                                  has a range of scores (values/shares.lua).
--   event.groups.turns (string)    while groups of several priorities wait: the number of names, 0
--                                  to 15, that were taken in this round (turns/groups.lua)
--   event.group:GROUP:waiting      (list) the grouped names, the oldest at the tail
--   event.groups.waiting (string)  the number of names in all lists, without marks
--   event.groups.times (hash)      by group: `LAST OLDEST MARKS`. The names in the list are younger
--                                  than OLDEST. LAST is the time of the newest mark in the list, and
--                                  MARKS the number of its marks. No claim depends on these times
-- A held object whose name was grouped stays in objects.held, with a score below 0. So it is
-- still due. If its name is lost, calls claim it when no group waits.

-- At most GROUPS_MAX groups without a share have a list, and LISTS_MAX groups in all. The names of
-- further groups share the list of REST, and so do those of groups with more than BYTES_MAX bytes,
-- because calls read and write the names of many groups.
local GROUPS_MAX, LISTS_MAX, BYTES_MAX, REST = 1024, 2048, 256, '\0rest'
-- The most parts of a name that can be its group.
local DEPTH_MAX = 8

-- Returns the group of an object: the first `depth` parts of its name.
local function group_of(object, depth)
  local at = 0
  for _ = 1, depth do
    at = string.find(object, ':', at + 1, true)
    if not at then
      return object
    end
  end
  return string.sub(object, 1, at - 1)
end

-- Returns the group in whose list the names of a group are.
local function listed(group)
  return #group <= BYTES_MAX and group or REST
end

-- Returns the parts of a field of event.groups.times; nil if there is no such field.
local function times_of(text)
  local last, oldest, marks = string.match(text or '', '^(%d+) (%d+) (%d+)$')
  return oldest and { oldest = tonumber(oldest), last = tonumber(last), marks = tonumber(marks) } or nil
end

-- Returns the most marks in the lists of so many groups of which event.groups.times tells nothing.
-- `has_times`: whether this key exists.
local function unknown_marks(has_times, groups)
  local marks = not has_times and groups > 0 and redis_try('ZCARD', P .. K.event_marks)
  return type(marks) == 'number' and marks * groups or 0
end

-- Returns the key of the list of a group.
local function key_of(group)
  return P .. K.GROUP .. group .. K.group_waiting
end

return {
  DEPTH_MAX = DEPTH_MAX, GROUPS_MAX = GROUPS_MAX, LISTS_MAX = LISTS_MAX, REST = REST, of = group_of, listed = listed, key = key_of,
  times_of = times_of, unknown_marks = unknown_marks,
}
