-- groups: lets the groups of objects take turns, if more objects wait than the call can claim.
-- Uses: aside.is_wrong_type aside.report_foreign group.GROUPS_MAX group.REST group.key group.of
-- Uses: group.times_of marks.MET marks.is_mark marks.met_all names.is_foreign time.now_ms

-- The most markers, bytes of markers, and due held objects that a call sets aside. The most markers
-- that one command reads, and names that one command pushes.
local MARKERS_MAX, BYTES_MAX, HELD_MAX, READ_MAX, PUSH_MAX = 2048, 65536, 256, 512, 1000
-- A further group counts as so many bytes, because it costs a command. The bytes are limited
-- because Lua's hash reads only some bytes of a long text. So long names may be slow to make.
local GROUP_BYTES = 100
-- The time between two marks in the list of a group, at the least.
local MARK_MS = 1000
-- The most groups from which a call takes names, and the fewest names per turn of a group in a call
-- with many claims. Each group costs two commands.
local TURNS_MAX, NAMES_MIN = 64, 4
-- The most objects that a call claims while more markers are to be set aside. So the markers of
-- groups that nobody knows yet are found soon.
local CLAIMS_MAX = 16
local DEPTH = tonumber(ARGV[13])
local byte, sub = string.byte, string.sub

-- The groups that have turns in this call, the next one first. Of each: `group`; `pass`, which
-- counts the names taken; `start`, the pass before this call; `claimed`, the objects claimed.
local turns = {}
-- The groups whose pass is to be written, and the groups without names.
local served, gone = {}, {}
-- The names that were read last, oldest first. Of each: its turn, and its place in the list of the
-- group. The marks between them, and the turns to which all of these belong.
local chunk, turn_of, place_of, marks, readers = {}, {}, {}, {}, {}
-- The names that are sorted now are younger than this time in ms; nil if it is unknown. The mark
-- with this time.
local mark_ms, mark_text = nil, nil
-- By group: the names sorted in this call, and those of groups that have a name since the last mark.
-- Of the names, `marks` is the number of marks among them, and `first_ms` and `ms` are the times of
-- the first mark and the last.
local sorted, since_mark = {}, {}
-- By group: its field in event.groups.times as far as it was read, or the parts of the field. The
-- groups whose times have changed.
local times, changed = {}, {}
-- The claimed objects that need not be counted for their groups any more.
local counted = {}

-- Returns a time before the next markers were pushed: the time of the last mark that was met. While
-- no process pushes marks, that time may be long ago. Marks are about 1 s apart. So the time of the
-- next mark, less 1 s, is a limit. Without marks, returns nil.
local function time_of_first()
  local found = try('ZRANGE', P .. K.event_marks, '0', '1', 'WITHSCORES')
  if found.err or not found[1] then
    return nil
  end
  local now_ms, has_met = M.time.now_ms(), found[1] == M.marks.MET
  local next_ms = tonumber(has_met and (found[4] or now_ms) or found[2])
  return math.min(math.max(has_met and tonumber(found[2]) or 0, next_ms - MARK_MS), now_ms)
end

-- Reads the times of groups. If the key has a wrong type, no times are known.
local function read_times(groups)
  if not groups[1] then
    return
  end
  local found = try('HMGET', P .. K.event_groups_times, unpack(groups))
  for g, group in ipairs(groups) do
    times[group] = not found.err and found[g] or false
  end
end

-- Returns the parts of a group's times; nil if they are unknown.
local function parts_of(of)
  return type(of) == 'string' and M.group.times_of(of) or type(of) == 'table' and of or nil
end

-- Writes the times that have changed. They are needed only to show the age of the oldest marker, so a
-- failure changes nothing else.
local function write_times()
  local fields = {}
  for group in pairs(changed) do
    local of = times[group]
    fields[#fields + 1], fields[#fields + 2] = group, string.format('%.0f %.0f %.0f', of.last, of.oldest, math.max(of.marks, 0))
  end
  for at = 1, #fields, PUSH_MAX do
    try('HSET', P .. K.event_groups_times, unpack(fields, at, math.min(at + PUSH_MAX - 1, #fields)))
  end
  changed = {}
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

-- Adds the object to the names of its group. Returns the names, and the group.
local function add(groups, object)
  local group = M.group.of(object, DEPTH)
  local names = since_mark[group] or begin_names(groups, group)
  names[#names + 1] = object
  return names, group
end

-- Begins to sort names that are younger than this time.
local function begin_mark(ms)
  mark_ms, mark_text, since_mark = ms, ms and string.format('\0t%.0f', ms), {}
end

-- Sorts due held objects by group. Returns scores and names for ZADD.
local function sort_held(groups)
  local due = call('ZRANGE', P .. K.objects_held, '0', M.time.now_ms(), 'BYSCORE', 'LIMIT', '0', HELD_MAX, 'WITHSCORES')
  local scores = {}
  for k = 1, #due, 2 do
    local object = due[k]
    if M.names.is_foreign(object) then
      call('ZREM', P .. K.objects_held, object)
      M.aside.report_foreign(object)
    else
      add(groups, object)
      scores[#scores + 1], scores[#scores + 2] = -math.max(tonumber(due[k + 1]), 1), object
    end
  end
  return scores
end

-- Sorts markers by group. Returns the number of markers read, and the marks among them.
local function sort_markers(groups)
  local met, read, bytes_left = {}, 0, BYTES_MAX
  -- Objects of one group often follow each other. So the names of the last group and the beginning
  -- of its objects' names are at hand.
  local names, group, beginning, length = nil, nil, nil, nil
  for at = 0, math.min(C.markers_left, MARKERS_MAX) - 1, READ_MAX do
    if bytes_left <= 0 then
      break
    end
    local found = call('LRANGE', P .. K.objects_with_events, -at - READ_MAX, -1 - at)
    for k = #found, 1, -1 do
      if bytes_left <= 0 then
        break
      end
      local object = found[k]
      read = read + 1
      if beginning and sub(object, 1, length) == beginning then
        names[#names + 1], bytes_left = object, bytes_left - #object
      else
        local first = byte(object)
        if first == 123 and M.names.is_foreign(object) then
          M.aside.report_foreign(object)
        elseif first == 0 and M.marks.is_mark(object) then
          met[#met + 1] = object
          -- A producer may have pushed a mark with any time.
          local ms = tonumber(sub(object, 3))
          if mark_ms and ms > mark_ms and ms <= M.time.now_ms() then
            begin_mark(ms)
            beginning = nil
          end
        elseif first then
          local known = #groups
          names, group = add(groups, object)
          bytes_left = bytes_left - #object - (#groups > known and GROUP_BYTES or 0)
          length = #group + 1
          beginning = #object > #group and group .. ':' or nil
        end
      end
    end
  end
  return read, met
end

-- Returns the pass with which new groups begin, as text: one above the lowest pass. With a lower one,
-- they would go before all others for as many claims as these have had. With the lowest pass, groups
-- that keep coming would go before those that have had a claim, for ever.
local function first_pass()
  local lowest = call('ZRANGE', P .. K.event_groups, '0', '0', 'WITHSCORES')[2]
  return lowest and string.format('%.0f', lowest + 1) or '0'
end

-- Enters new groups in event.groups, behind the groups with the lowest pass. Groups for which there
-- is no place any more go to REST. Returns the list in which each group's names are set aside.
local function enter(groups)
  local key, list_of, new = P .. K.event_groups, {}, {}
  local passes, first = call('ZMSCORE', key, unpack(groups)), first_pass()
  local room = M.group.GROUPS_MAX - call('ZCARD', key)
  for g, group in ipairs(groups) do
    if passes[g] or room > 0 then
      list_of[group] = group
      if not passes[g] then
        room, new[#new + 1], new[#new + 2] = room - 1, first, group
      end
    else
      list_of[group] = M.group.REST
    end
  end
  if room <= 0 then
    new[#new + 1], new[#new + 2] = first, M.group.REST
  end
  if new[1] then
    call('ZADD', key, 'NX', unpack(new))
  end
  return list_of
end

-- Pushes names to the list of a group. If the list has a wrong type, pushes them to REST.
local function push(group, names)
  local key, of, first, was_empty = M.group.key(group), times[group], 1, false
  local last_ms = names.first_ms and of and (type(of) == 'table' and of.last or tonumber(string.match(of, '^%d+')))
  local after_ms = last_ms and names.first_ms - last_ms
  if after_ms and after_ms >= 0 and after_ms < MARK_MS then
    -- The mark before the first name says no more than the last mark in the list.
    first = 2
  end
  for at = first, #names, PUSH_MAX do
    local last = math.min(at + PUSH_MAX - 1, #names)
    local pushed = try('LPUSH', key, unpack(names, at, last))
    if type(pushed) == 'table' then
      if group == M.group.REST or not M.aside.is_wrong_type(pushed) then
        error(pushed)
      end
      call('ZADD', P .. K.event_groups, 'NX', first_pass(), M.group.REST)
      read_times(names.first_ms and { M.group.REST } or {})
      return push(M.group.REST, names)
    end
    was_empty = was_empty or at == first and pushed == last - at + 1
  end
  local pushed_marks = (names.marks or 0) + 1 - first
  C.waiting = C.waiting + #names - (names.marks or 0)
  if names.first_ms and (was_empty or not of or pushed_marks > 0) then
    of = parts_of(of) or { last = 0, marks = 0 }
    of.oldest = (was_empty or not of.oldest) and names.first_ms or of.oldest
    of.last, of.marks = names.ms, (was_empty and 0 or of.marks) + pushed_marks
    times[group], changed[group] = of, true
  end
end

-- Sets aside markers and due held objects, the oldest first.
local function set_aside()
  local groups, scores = {}, {}
  begin_mark(time_of_first())
  if C.is_due or C.held_changed then
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
      read_times(lists)
    end
    for _, group in ipairs(groups) do
      push(list_of[group], sorted[group])
    end
  end
  -- Only now other lists cover the objects of these markers.
  if read > 0 then
    call('LTRIM', P .. K.objects_with_events, '0', -1 - read)
    M.marks.met_all(met)
  end
  if scores[1] then
    call('ZADD', P .. K.objects_held, 'XX', unpack(scores))
  end
  -- If there were as many due held objects as a call sets aside, others may wait behind them.
  C.unsorted = C.markers_left > read or #scores >= 2 * HELD_MAX
  if C.unsorted then
    C.claims_left = math.min(C.claims_left, CLAIMS_MAX)
  end
  C.markers_left = C.waiting
  C.progress = C.progress or read > 0 or scores[1] ~= nil
end

-- Reads the groups with the lowest passes.
local function read_turns()
  local found = call('ZRANGE', P .. K.event_groups, '0', TURNS_MAX - 1, 'WITHSCORES')
  for k = 1, #found, 2 do
    local pass = tonumber(found[k + 1])
    turns[#turns + 1] = { group = found[k], pass = pass, start = pass, claimed = 0 }
  end
end

-- Begins the turns of the groups in this call. From then on, markers come from the lists of groups.
local function open()
  C.grouped = true
  for object in pairs(C.claimed) do
    counted[object] = true
  end
  if DEPTH > 0 then
    set_aside()
  else
    -- The names that were set aside earlier are older than the markers.
    C.unsorted, C.markers_left = C.markers_left > 0, C.waiting
  end
  if C.claims_left > 0 then
    read_turns()
  end
end

-- Removes the groups without names from event.groups.
local function leave()
  local groups = {}
  for turn in pairs(gone) do
    groups[#groups + 1] = turn.group
  end
  if groups[1] then
    call('ZREM', P .. K.event_groups, unpack(groups))
    try('HDEL', P .. K.event_groups_times, unpack(groups))
    for _, group in ipairs(groups) do
      times[group], changed[group] = nil, nil
    end
  end
  gone = {}
end

-- Puts a turn back among the turns, behind all turns with the same pass or a lower one.
local function insert(turn)
  local at = #turns
  while at > 0 and turns[at].pass > turn.pass do
    at = at - 1
  end
  table.insert(turns, at + 1, turn)
end

-- Reads up to `most` further names of a group, and the marks between them. They stay in the list
-- until they are used. Returns the number of names.
local function read_from(turn, most)
  local before, asked, found = #chunk, 0, nil
  turn.read, readers[turn] = turn.read or 0, true
  repeat
    asked = most - (#chunk - before)
    found = try('LRANGE', M.group.key(turn.group), -turn.read - asked, -1 - turn.read)
    if M.aside.is_wrong_type(found) then
      break
    end
    for k = #found, 1, -1 do
      local name = found[k]
      turn.read = turn.read + 1
      if byte(name) == 0 and M.marks.is_mark(name) then
        marks[#marks + 1] = { ms = tonumber(sub(name, 3)), turn = turn, place = turn.read }
      else
        local n = #chunk + 1
        chunk[n], turn_of[n], place_of[n] = name, turn, turn.read
      end
    end
  until #found < asked or #chunk - before == most
  return #chunk - before
end

-- Reads up to `size` names from the lists of groups, in turns, oldest first within a group.
local function take(size)
  local most = math.max(math.ceil(size / #turns), math.min(math.floor(size / 8), NAMES_MIN))
  while #chunk < size and turns[1] do
    local turn = table.remove(turns, 1)
    local names = read_from(turn, math.min(most, size - #chunk))
    if names > 0 then
      turn.pass, served[turn] = turn.pass + names, true
      insert(turn)
    else
      gone[turn], served[turn] = true, nil
      if not turns[1] then
        leave()
        read_turns()
      end
    end
  end
  return chunk
end

-- Ends the use of the names that were read last. Removes the first `used` from their lists, with the
-- marks before them. Names are removed last, so that a call that fails loses none.
local function trim(used)
  local left = {}
  for k = #chunk, used + 1, -1 do
    local turn = turn_of[k]
    left[turn] = place_of[k] - 1
    -- The group has names, even if it had no further ones at its last turn.
    gone[turn], served[turn] = nil, true
  end
  for turn in pairs(readers) do
    turn.read = left[turn] or turn.read
    if turn.read > 0 then
      call('LTRIM', M.group.key(turn.group), '0', -1 - turn.read)
    end
  end
  for _, mark in ipairs(marks) do
    local turn = mark.turn
    if mark.place <= turn.read then
      turn.marks, turn.met_ms = (turn.marks or 0) + 1, mark.ms
    end
  end
  for turn in pairs(readers) do
    turn.read = nil
  end
  for k = 1, used do
    local name = chunk[k]
    -- The chunk may have the name of an object twice.
    if C.claimed[name] and not counted[name] then
      counted[name], turn_of[k].claimed = true, turn_of[k].claimed + 1
    end
  end
  C.waiting = C.waiting - used
  chunk, turn_of, place_of, marks, readers = {}, {}, {}, {}, {}
end

-- Ends the turns of the groups in this call. A group without names keeps its pass until its next
-- turn. Otherwise a group that gets a name now and then would be the next one each time.
local function close()
  trim(C.markers_used)
  -- If a command below fails, the number is still right.
  local at = #C.to_set
  C.to_set[at + 1], C.to_set[at + 2] = P .. K.event_groups_waiting, string.format('%.0f', math.max(C.waiting, 0))
  local met = {}
  for turn in pairs(served) do
    met[#met + 1] = turn.met_ms and times[turn.group] == nil and turn.group or nil
  end
  read_times(met)
  for turn in pairs(served) do
    local of = turn.met_ms and parts_of(times[turn.group])
    if of then
      of.oldest, of.marks = turn.met_ms, of.marks - turn.marks
      times[turn.group], changed[turn.group] = of, true
    end
  end
  local key, passes = P .. K.event_groups, {}
  for turn in pairs(served) do
    passes[#passes + 1], passes[#passes + 2] = turn.start + turn.claimed, turn.group
  end
  if passes[1] then
    call('ZADD', key, unpack(passes))
  end
  leave()
  write_times()
  -- If no group is left, the number of names was too high, for example because a list was deleted.
  if C.waiting <= 0 or call('ZCARD', key) == 0 then
    local keys = {}
    for k, group in ipairs(call('ZRANGE', key, '0', '-1')) do
      keys[k] = M.group.key(group)
    end
    C.waiting = keys[1] and call('EXISTS', unpack(keys)) or 0
  end
  C.to_set[at + 2] = string.format('%.0f', C.waiting)
  if C.waiting == 0 then
    C.to_set[at + 1], C.to_set[at + 2] = nil, nil
    for _, shared in ipairs({ K.event_groups, K.event_groups_waiting, K.event_groups_times }) do
      C.to_delete[#C.to_delete + 1] = P .. shared
    end
  end
  C.markers_left = C.waiting
end

return { open = open, take = take, trim = trim, close = close }
