-- groups: lets the groups of objects take turns, if more objects wait than the call can claim.
-- Uses: ages.drop ages.is_read ages.parts_of ages.put ages.read ages.write aside.is_wrong_type
-- Uses: group.key marks.is_mark share.CLASS shares.any shares.makes_groups shares.weigh
-- Uses: sorting.set_aside

-- The most groups of a class from which a call takes names, and the fewest names per turn of a group
-- in a call with many claims. Each group costs two commands.
local TURNS_MAX, NAMES_MIN = 64, 4
-- Of so many names, the classes after the highest one that waits get one each.
local ROUND = 16
local byte, sub = string.byte, string.sub

-- By class: the groups that have turns in this call, the next one first. Of each: `group`; `class`;
-- `weight`; `pass`, which counts the names taken; `start`, the pass before this call; `claimed`, the
-- objects claimed.
local turns = { [-1] = {}, [0] = {}, [1] = {} }
-- While groups of several classes wait: the number of names that were taken in this round. Else nil.
local place_in_round = nil
-- The groups whose pass is to be written, and the groups without names.
local served, gone = {}, {}
-- The names that were read last, oldest first. Of each: its turn, and its place in the list of the
-- group. The marks between them, and the turns to which all of these belong.
local chunk, turn_of, place_of, marks, readers = {}, {}, {}, {}, {}
-- The claimed objects that need not be counted for their groups any more.
local counted = {}

-- Reads the groups of a class with the lowest passes. Without shares, all groups have the class 0.
local function read_turns(class)
  local found
  if M.shares.any then
    local from = class == -1 and '-inf' or class * M.share.CLASS
    local to = class == 1 and 'inf' or string.format('(%.0f', (class + 1) * M.share.CLASS)
    found = call('ZRANGE', P .. K.event_groups, from, to, 'BYSCORE', 'LIMIT', '0', TURNS_MAX, 'WITHSCORES')
  else
    found = class == 0 and call('ZRANGE', P .. K.event_groups, '0', TURNS_MAX - 1, 'WITHSCORES') or {}
  end
  for k = 1, #found, 2 do
    local pass = tonumber(found[k + 1])
    turns[class][(k + 1) / 2] = { group = found[k], class = class, weight = M.shares.weigh(found[k]), pass = pass, start = pass, claimed = 0 }
  end
end

-- Reads how many names were taken in this round, if groups of several classes wait.
local function begin_round()
  local classes = 0
  for class = -1, 1 do
    read_turns(class)
    classes = classes + (turns[class][1] and 1 or 0)
  end
  if classes > 1 then
    local told = try('GET', P .. K.event_groups_turns)
    place_in_round = type(told) == 'string' and tonumber(told) or 0
    place_in_round = place_in_round >= 0 and place_in_round < ROUND and math.floor(place_in_round) or 0
  end
end

-- Returns the class whose groups have the next turn, and the most names of this turn. The highest
-- class that waits has most turns. The last name of a round is for the lowest class, and a name in
-- the middle for the class between. If no group waits, returns nil.
local function next_class()
  if not place_in_round then
    local class = turns[0][1] and 0 or turns[-1][1] and -1 or turns[1][1] and 1 or nil
    return class, math.huge
  end
  local first, last = nil, nil
  for class = -1, 1 do
    if turns[class][1] then
      first, last = first or class, class
    end
  end
  local place, middle = place_in_round % ROUND, ROUND / 2 - 1
  local has_middle = first == -1 and last == 1 and turns[0][1] ~= nil
  if place == ROUND - 1 then
    return last, 1
  elseif has_middle and place <= middle then
    return place == middle and 0 or first, place == middle and 1 or middle - place
  end
  return first, ROUND - 1 - place
end

-- Begins the turns of the groups in this call. From then on, markers come from the lists of groups.
local function open()
  C.grouped = true
  for object in pairs(C.claimed) do
    counted[object] = true
  end
  if M.shares.makes_groups then
    M.sorting.set_aside()
  else
    -- The names that were set aside earlier are older than the markers.
    C.unsorted, C.markers_left = C.markers_left > 0, C.waiting
  end
  if C.claims_left > 0 then
    begin_round()
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
    M.ages.drop(groups)
  end
  gone = {}
end

-- Puts a turn back among the turns of its class, behind all turns with the same pass or a lower one.
local function insert(turn)
  local others = turns[turn.class]
  local at = #others
  while at > 0 and others[at].pass > turn.pass do
    at = at - 1
  end
  table.insert(others, at + 1, turn)
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
  local most = {}
  for class, waiting in pairs(turns) do
    most[class] = math.max(math.ceil(size / #waiting), math.min(math.floor(size / 8), NAMES_MIN))
  end
  while #chunk < size do
    local class, names_max = next_class()
    if not class then
      break
    end
    local turn = table.remove(turns[class], 1)
    local names = read_from(turn, math.min(most[class], size - #chunk, names_max))
    if names > 0 then
      turn.pass, served[turn] = turn.pass + names / turn.weight, true
      place_in_round = place_in_round and place_in_round + names
      insert(turn)
    else
      gone[turn], served[turn] = true, nil
      if not turns[class][1] then
        leave()
        read_turns(class)
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
  place_in_round = place_in_round and place_in_round - #chunk + used
  chunk, turn_of, place_of, marks, readers = {}, {}, {}, {}, {}
end

-- Ends the turns of the groups in this call. A group without names keeps its pass until its next
-- turn. Otherwise a group that gets a name now and then would be the next one each time.
local function close()
  trim(C.markers_used)
  -- If a command below fails, the number is still right.
  local at = #C.to_set
  C.to_set[at + 1], C.to_set[at + 2] = P .. K.event_groups_waiting, string.format('%.0f', math.max(C.waiting, 0))
  if place_in_round then
    C.to_set[at + 3], C.to_set[at + 4] = P .. K.event_groups_turns, string.format('%d', place_in_round % ROUND)
  end
  local met = {}
  for turn in pairs(served) do
    met[#met + 1] = turn.met_ms and not M.ages.is_read(turn.group) and turn.group or nil
  end
  M.ages.read(met)
  for turn in pairs(served) do
    local of = turn.met_ms and M.ages.parts_of(turn.group)
    if of then
      of.oldest, of.marks = turn.met_ms, of.marks - turn.marks
      M.ages.put(turn.group, of)
    end
  end
  local key, passes = P .. K.event_groups, {}
  for turn in pairs(served) do
    passes[#passes + 1], passes[#passes + 2] = turn.start + turn.claimed / turn.weight, turn.group
  end
  if passes[1] then
    call('ZADD', key, unpack(passes))
  end
  leave()
  M.ages.write()
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
    for k = at + 1, #C.to_set do
      C.to_set[k] = nil
    end
    for _, shared in ipairs({ K.event_groups, K.event_groups_waiting, K.event_groups_times, K.event_groups_turns }) do
      C.to_delete[#C.to_delete + 1] = P .. shared
    end
  end
  C.markers_left = C.waiting
end

return { open = open, take = take, trim = trim, close = close }
