-- sorting (passing): groups the names of objects that wait: moves each to the list of its group.

-- The most markers, bytes of markers, and due held objects that a call groups. The most markers
-- that the first command reads, and that a further one reads: names may be long, so the first ones
-- show how many to read. The most names that one command pushes.
local MARKERS_MAX, BYTES_MAX, HELD_MAX, READ_FIRST, READ_MAX, PUSH_MAX = 2048, 65536, 256, 8, 512, 1000
-- A further group counts as so many bytes, because it costs a command; and so does a prefix whose
-- share is read. The bytes are limited because Lua's hash reads only some bytes of a long text. So
-- long names may be slow to make.
local GROUP_BYTES, PREFIX_BYTES = 100, 32
-- The time between two marks in the list of a group, at the least.
local MARK_MS = 1000
-- The most objects that a call claims while more markers are to be grouped. So the markers of
-- groups that nobody knows yet are found soon.
local CLAIMS_MAX = 16
local byte, sub = string.byte, string.sub

-- The names that are sorted now are younger than this time in ms; nil if it is unknown. The mark
-- with this time.
local mark_ms, mark_text = nil, nil
-- By group: the names sorted in this call, and those of groups that have a name since the last mark.
-- Of the names, `marks` is the number of marks among them, and `first_ms` and `ms` are the times of
-- the first mark and the last.
local sorted, since_mark = {}, {}

-- Returns a time before the next markers were pushed: the time of the last mark that was met. While
-- no process pushes marks, that time may be long ago. Marks are about 1 s apart. So the time of the
-- next mark, less 1 s, is a limit. Without marks, returns nil.
local function time_of_first()
  local found = redis_try('ZRANGE', P .. K.event_marks, '0', '1', 'WITHSCORES')
  if found.err or not found[1] then
    return nil
  end
  local now_ms, has_met = rare.time.now_ms(), found[1] == rare.marks.MET
  local next_ms = tonumber(has_met and (found[4] or now_ms) or found[2])
  return math.min(math.max(has_met and tonumber(found[2]) or 0, next_ms - MARK_MS), now_ms)
end

-- Returns the names of a group that has none since the last mark. They begin with a mark.
local function begin_names(groups, group)
  local names = sorted[group]
  if not names then
    names = mark_ms and { mark_text, first_ms = mark_ms, ms = mark_ms, marks = 1 } or {}
    sorted[group], groups[#groups + 1] = names, group
  else
    names.ms, names.marks, names[#names + 1] = mark_ms, names.marks + 1, mark_text
  end
  since_mark[group] = names
  return names
end

-- Adds the object to the names of the group. Returns the names.
local function add(groups, group, object)
  local names = since_mark[group] or begin_names(groups, group)
  names[#names + 1] = object
  return names
end

-- Begins to sort names that are younger than this time.
local function begin_mark(ms)
  mark_ms, mark_text, since_mark = ms, ms and string.format('\0t%.0f', ms), {}
end

-- Sorts due held objects by group. Returns scores and names for ZADD: a negative score says that the
-- name is grouped.
local function sort_held(groups)
  -- If no name is grouped, names of held objects were lost.
  local due = redis_call('ZRANGE', P .. K.objects_held, call.waiting > 0 and '0' or '-inf', rare.time.now_ms(), 'BYSCORE', 'LIMIT', '0', HELD_MAX, 'WITHSCORES')
  local scores = {}
  for k = 1, #due, 2 do
    local object = due[k]
    if rare.names.is_foreign(object) then
      redis_call('ZREM', P .. K.objects_held, object)
      rare.quarantine.report_foreign(object)
    else
      add(groups, (rare.known_shares.group_of(object)), object)
      scores[#scores + 1], scores[#scores + 2] = -math.max(tonumber(due[k + 1]), 1), object
    end
  end
  return scores
end

-- Sorts markers by group. Returns the number of markers read, and the marks among them.
local function sort_markers(groups)
  local met, read, bytes_left, bytes_read, count, most = {}, 0, BYTES_MAX, 0, READ_FIRST, math.min(call.markers_left, MARKERS_MAX)
  -- Objects of one group often follow each other. So the names of the last group and the beginning
  -- of its objects' names are at hand.
  local names, beginning, length = nil, nil, nil
  while bytes_left > 0 and read < most and count > 0 do
    local found = redis_call('LRANGE', P .. K.objects_with_events, -read - math.min(count, most - read), -1 - read)
    for k = #found, 1, -1 do
      if bytes_left <= 0 then
        break
      end
      local object = found[k]
      read, bytes_read, bytes_left = read + 1, bytes_read + #object, bytes_left - #object
      if beginning and sub(object, 1, length) == beginning then
        names[#names + 1] = object
      else
        local first = byte(object)
        if first == 123 and rare.names.is_foreign(object) then
          rare.quarantine.report_foreign(object)
        elseif first == 0 and rare.marks.is_mark(object) then
          met[#met + 1] = object
          -- A producer may have pushed a mark with any time.
          local ms = tonumber(sub(object, 3))
          if mark_ms and ms > mark_ms and ms <= rare.time.now_ms() then
            begin_mark(ms)
            beginning = nil
          end
        elseif first then
          local known, group, cell, new = #groups, rare.known_shares.group_of(object, found, k)
          names = add(groups, group, object)
          bytes_left = bytes_left - (#groups > known and GROUP_BYTES or 0) - new * PREFIX_BYTES
          length = #cell + 1
          beginning = #object > #cell and cell .. ':' or nil
        end
      end
    end
    count = #found > 0 and math.min(4 * count, READ_MAX, math.max(math.floor(bytes_left * read / math.max(bytes_read, 1)), 1)) or 0
  end
  return read, met
end

-- Enters new groups in event.groups, behind the groups of their class with the lowest pass. Groups
-- for which there is no place any more go to REST. A group with a share has a place even then. Returns the list that has each group's names.
local function enter(groups)
  local key, list_of, new, first = P .. K.event_groups, {}, {}, {}
  local passes = redis_call('ZMSCORE', key, unpack(groups))
  local count = redis_call('ZCARD', key)
  for g, group in ipairs(groups) do
    if passes[g] or count < rare.group.GROUPS_MAX or count < rare.group.LISTS_MAX and rare.known_shares.has_own(group) then
      list_of[group] = group
      if not passes[g] then
        local _, class = rare.known_shares.weigh(group)
        first[class] = first[class] or rare.shares.first_pass(class)
        count, new[#new + 1], new[#new + 2] = count + 1, first[class], group
      end
    else
      list_of[group] = rare.group.REST
    end
  end
  if count >= rare.group.GROUPS_MAX then
    new[#new + 1], new[#new + 2] = first[0] or rare.shares.first_pass(0), rare.group.REST
  end
  if new[1] then
    redis_call('ZADD', key, 'NX', unpack(new))
  end
  return list_of
end

-- Pushes names to the list of a group. If the list has a wrong type, pushes them to REST.
local function push(group, names)
  local key, first, was_empty = rare.group.key(group), 1, false
  local last_ms = names.first_ms and rare.ages.last_of(group)
  local after_ms = last_ms and names.first_ms - last_ms
  if after_ms and after_ms >= 0 and after_ms < MARK_MS then
    -- The mark before the first name says no more than the last mark in the list.
    first = 2
  end
  for at = first, #names, PUSH_MAX do
    local last = math.min(at + PUSH_MAX - 1, #names)
    local pushed = redis_try('LPUSH', key, unpack(names, at, last))
    if type(pushed) == 'table' then
      if group == rare.group.REST or not rare.quarantine.is_wrong_type(pushed) then
        error(pushed)
      end
      redis_call('ZADD', P .. K.event_groups, 'NX', rare.shares.first_pass(0), rare.group.REST)
      rare.ages.read(names.first_ms and { rare.group.REST } or {})
      return push(rare.group.REST, names)
    end
    was_empty = was_empty or at == first and pushed == last - at + 1
  end
  local pushed_marks = (names.marks or 0) + 1 - first
  call.waiting = call.waiting + #names - (names.marks or 0)
  if names.first_ms and (was_empty or not last_ms or pushed_marks > 0) then
    local of = rare.ages.parts_of(group) or { last = 0, marks = 0 }
    of.oldest = (was_empty or not of.oldest) and names.first_ms or of.oldest
    of.last, of.marks = names.ms, (was_empty and 0 or of.marks) + pushed_marks
    rare.ages.put(group, of)
  end
end

-- Groups due held objects, and behind them markers, the oldest of each first.
local function sort()
  local groups, scores = {}, {}
  begin_mark(time_of_first())
  if call.is_due or call.held_changed then
    scores = sort_held(groups)
  end
  local read, met = sort_markers(groups)
  if groups[1] then
    local list_of = enter(groups)
    if mark_ms then
      local lists, seen = {}, {}
      for _, list in pairs(list_of) do
        lists[#lists + 1], seen[list] = not seen[list] and list or nil, true
      end
      rare.ages.read(lists)
    end
    for _, group in ipairs(groups) do
      push(list_of[group], sorted[group])
    end
  end
  -- Only now other lists cover the objects of these markers.
  if read > 0 then
    redis_call('LTRIM', P .. K.objects_with_events, '0', -1 - read)
    rare.marks.met_all(met)
  end
  if scores[1] then
    redis_call('ZADD', P .. K.objects_held, 'XX', unpack(scores))
  end
  -- If there were as many due held objects as a call groups, others may wait behind them.
  call.unsorted = call.markers_left > read or #scores >= 2 * HELD_MAX
  if call.unsorted then
    budget.claims_left = math.min(budget.claims_left, CLAIMS_MAX)
  end
  call.markers_left = call.waiting
  call.progress = call.progress or read > 0 or scores[1] ~= nil
end

-- Pushes the name of an object to the list of its group, unless that is the list `from`, or has a wrong
-- type. Returns the group of the list to which it was pushed.
local function move(group, object, from)
  local list = enter({ group })[group]
  local kind = from and redis_call('TYPE', rare.group.key(list)).ok
  if list == from or from and kind ~= 'list' and kind ~= 'none' then
    return nil
  end
  push(list, { object })
  return list
end

return { sort = sort, move = move }
