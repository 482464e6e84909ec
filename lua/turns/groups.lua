-- groups (passing): lets the groups of objects take turns, if more objects wait than the call can
-- claim.

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
-- By turn: the place in the chunk from which on its names stay in their list, because a limit allows
-- no claim.
local stopped = {}
-- With limits, a turn reads no more names than the limit allows claims. If none of them led to a
-- claim, it reads PATIENCE times as many the next time, up to PATIENCE_MAX.
local PATIENCE, PATIENCE_MAX = 4, 64
-- With limits: the turns that have read all names that may be claimed, and wait for the end of the
-- chunk. The groups whose turns the call has read: it reads none of them again, because it looks at a
-- name only once. By class, the number of those that are still in event.groups and do not wait for a
-- limit.
local paused, known, in_set = {}, {}, { [-1] = 0, [0] = 0, [1] = 0 }
-- The most objects that a call claims while a share has a limit. Each may have a limit of its own.
local LIMITED_MAX = 128
-- Whether the limit of all objects allows no claim. Whether the call has pushed names to lists that it
-- may not read any more, or to the end of the same list.
local is_full, has_moved, has_rotated = false, false, false
-- The most groups that begin to wait for a limit in a call.
local parks_left = 128

-- Reads the groups of a class with the lowest passes. Without shares, all groups have the class 0.
local function read_turns(class)
  local rank = call.limited and in_set[class] or 0
  local found
  if rare.known_shares.any then
    local from = class == -1 and '-inf' or class * rare.shares.CLASS
    local to = string.format('(%.0f', (class + 1) * rare.shares.CLASS)
    found = redis_call('ZRANGE', P .. K.event_groups, from, to, 'BYSCORE', 'LIMIT', rank, TURNS_MAX, 'WITHSCORES')
  else
    found = class == 0 and redis_call('ZRANGE', P .. K.event_groups, rank, rank + TURNS_MAX - 1, 'WITHSCORES') or {}
  end
  local groups = {}
  for k = 1, #found, 2 do
    groups[#groups + 1] = found[k]
  end
  rare.known_shares.learn_all(groups)
  if call.limited then
    rare.share_limits.learn_all(groups)
  end
  local of_class = turns[class]
  for k = 1, #found, 2 do
    local group, pass = found[k], tonumber(found[k + 1])
    if not (call.limited and known[group]) then
      of_class[#of_class + 1] = { group = group, class = class, weight = rare.known_shares.weigh(group), pass = pass, start = pass, claimed = 0 }
      known[group], in_set[class] = true, in_set[class] + 1
    end
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
    local stored = redis_try('GET', P .. K.event_groups_turns)
    place_in_round = type(stored) == 'string' and tonumber(stored) or 0
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
  call.grouped = true
  for object in pairs(call.claimed) do
    counted[object] = true
  end
  if rare.known_shares.makes_groups then
    rare.sorting.sort()
  else
    -- The names that were grouped earlier are older than the markers.
    call.unsorted, call.markers_left = call.markers_left > 0, call.waiting
  end
  if call.limited and budget.claims_left > 0 then
    rare.share_limits.unpark()
    local room, by = rare.share_limits.room(rare.group.REST)
    is_full, call.full_by = room <= 0, room <= 0 and by
    budget.claims_left = math.min(budget.claims_left, LIMITED_MAX)
  end
  if budget.claims_left > 0 and not is_full then
    begin_round()
  end
end

-- Removes the groups without names from event.groups.
local function leave()
  local groups = {}
  for turn in pairs(gone) do
    groups[#groups + 1] = turn.group
    in_set[turn.class], turn.has_left = in_set[turn.class] - 1, true
  end
  if groups[1] then
    redis_call('ZREM', P .. K.event_groups, unpack(groups))
    rare.ages.drop(groups)
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
  local key, read, n, last = rare.group.key(turn.group), turn.read, before, before + most
  repeat
    asked = last - n
    found = redis_try('LRANGE', key, -read - asked, -1 - read)
    if rare.quarantine.is_wrong_type(found) then
      break
    end
    for k = #found, 1, -1 do
      local name = found[k]
      read = read + 1
      if byte(name) == 0 and rare.marks.is_mark(name) then
        marks[#marks + 1] = { ms = tonumber(sub(name, 3)), turn = turn, place = read }
      else
        n = n + 1
        chunk[n], turn_of[n], place_of[n] = name, turn, read
      end
    end
  until #found < asked or n == last
  turn.read = read
  return n - before
end

-- Ends the turn of a group for this call, because the counter `by` allows no claim.
local function wait_for(turn, by)
  if by.prefix == '*' then
    is_full, call.full_by, turns = true, by, { [-1] = {}, [0] = {}, [1] = {} }
  else
    parks_left = parks_left - 1
    -- The next call goes on with the other groups.
    call.progress = call.progress or parks_left <= 0
    -- A group whose last names are in the chunk may have left already.
    turn.is_parked, in_set[turn.class] = true, in_set[turn.class] - (turn.has_left and 0 or 1)
    rare.share_limits.park(turn.group, turn.start + turn.claimed / turn.weight, by)
  end
end

-- Moves a name to the list of its group, unless that is the list `from`. A group that had no names
-- any more goes on with its turn. Returns the group of the list; nil if the name was not moved.
local function move(group, object, from)
  local list = rare.sorting.move(group, object, from)
  has_moved, has_rotated = has_moved or list and from, has_rotated or list and not from
  for turn in pairs(list and gone or {}) do
    if turn.group == list then
      gone[turn], served[turn] = nil, true
      insert(turn)
      break
    end
  end
  return list
end

-- Returns whether an object may be claimed now: true, or `stays` if its name stays in the list of its
-- group, or `moved` if its name was pushed to another list. `place`: its place in the chunk.
local function admits(place, object, held)
  local turn = turn_of[place]
  if stopped[turn] then
    return 'stays'
  end
  local group = rare.known_shares.known_group_of(object)
  -- An object without a share has only the limit of all objects, whatever its list.
  local is_other = group ~= turn.group and rare.known_shares.has_own(group)
  if is_other and move(group, object, turn.group) then
    return 'moved'
  end
  local may_go, by = rare.share_limits.admits(group, object, held)
  if may_go then
    return true
  elseif is_other and by.prefix ~= '*' then
    move(group, object, nil)
    return 'moved'
  end
  stopped[turn] = place
  wait_for(turn, by)
  return 'stays'
end

-- Reads up to `size` names from the lists of groups, in turns, oldest first within a group.
local function take(size)
  local most = {}
  for class, waiting in pairs(turns) do
    most[class] = math.max(math.ceil(size / #waiting), math.min(math.floor(size / 8), NAMES_MIN))
  end
  while #chunk < size do
    local class, names_max = next_class()
    if not class or parks_left <= 0 then
      break
    end
    local turn, room, by, names = table.remove(turns[class], 1), math.huge, nil, 0
    if call.limited and not turn.is_parked then
      room, by = rare.share_limits.room(turn.group)
    end
    if room <= 0 then
      wait_for(turn, by)
    elseif turn.pending and turn.pending >= room then
      paused[#paused + 1] = turn
    elseif not turn.is_parked then
      local allowed = math.max(room - (turn.pending or 0), turn.patience or 1)
      names = read_from(turn, math.min(most[class], size - #chunk, names_max, allowed))
      if names > 0 then
        turn.pass, served[turn] = turn.pass + names / turn.weight, true
        turn.pending = (turn.pending or 0) + names
        place_in_round = place_in_round and place_in_round + names
        insert(turn)
      else
        gone[turn], served[turn] = true, nil
      end
    end
    if names == 0 and not turns[class][1] and not is_full then
      leave()
      read_turns(class)
    end
  end
  return chunk
end

-- Ends the use of the names that were read last. Removes the first `used` from their lists, with the
-- marks before them. Names are removed last, so that a call that fails loses none.
local function trim(used)
  local left, kept = {}, 0
  for k = #chunk, next(stopped) and 1 or used + 1, -1 do
    local turn = turn_of[k]
    if k > used or stopped[turn] and k >= stopped[turn] then
      left[turn], kept = place_of[k] - 1, kept + (k > used and 0 or 1)
      -- The group has names, even if it had no further ones at its last turn.
      gone[turn], served[turn] = nil, true
    end
  end
  for turn in pairs(readers) do
    turn.read = left[turn] or turn.read
    if turn.read > 0 then
      redis_call('LTRIM', rare.group.key(turn.group), '0', -1 - turn.read)
    end
  end
  for _, mark in ipairs(marks) do
    local turn = mark.turn
    if mark.place <= turn.read then
      turn.marks, turn.met_ms = (turn.marks or 0) + 1, mark.ms
    end
  end
  local claimed = call.claimed
  for k = 1, used do
    local name, turn = chunk[k], turn_of[k]
    -- The chunk may have the name of an object twice.
    if claimed[name] and not counted[name] then
      counted[name], turn.claimed, turn.has_led = true, turn.claimed + 1, true
    end
  end
  for turn in pairs(readers) do
    turn.patience = turn.has_led and 1 or math.min((turn.patience or 1) * PATIENCE, PATIENCE_MAX)
    turn.read, turn.pending, turn.has_led = nil, nil, nil
  end
  call.waiting = call.waiting - used + kept
  place_in_round = place_in_round and place_in_round - #chunk + used - kept
  for _, turn in ipairs(is_full and {} or paused) do
    insert(turn)
  end
  stopped, paused = {}, {}
  chunk, turn_of, place_of, marks, readers = {}, {}, {}, {}, {}
end

-- Ends the turns of the groups in this call. A group without names keeps its pass until its next
-- turn. Otherwise a group that gets a name now and then would be the next one each time.
local function close()
  trim(call.markers_used)
  -- If a command below fails, the number is still right.
  writes.set(P .. K.event_groups_waiting, string.format('%.0f', math.max(call.waiting, 0)))
  if place_in_round then
    writes.set(P .. K.event_groups_turns, string.format('%d', place_in_round % ROUND))
  end
  local met = {}
  for turn in pairs(served) do
    met[#met + 1] = turn.met_ms and not rare.ages.is_read(turn.group) and turn.group or nil
  end
  rare.ages.read(met)
  for turn in pairs(served) do
    local of = turn.met_ms and rare.ages.parts_of(turn.group)
    if of then
      of.oldest, of.marks = turn.met_ms, of.marks - turn.marks
      rare.ages.put(turn.group, of)
    end
  end
  local key, passes = P .. K.event_groups, {}
  for turn in pairs(served) do
    passes[#passes + 1], passes[#passes + 2] = turn.start + turn.claimed / turn.weight + (turn.is_parked and rare.shares.PARKED or 0), turn.group
  end
  if passes[1] then
    redis_call('ZADD', key, unpack(passes))
  end
  leave()
  rare.ages.write()
  -- If no group is left, the number of names was too high, for example because a list was deleted.
  if call.waiting <= 0 or redis_call('ZCARD', key) == 0 then
    local keys = {}
    for k, group in ipairs(redis_call('ZRANGE', key, '0', '-1')) do
      keys[k] = rare.group.key(group)
    end
    if call.waiting > 0 and not keys[1] then
      rare.quarantine.report_lost(K.event_groups, 'lost: names were grouped, but no group is left; run seriatim check')
    end
    call.waiting = keys[1] and redis_call('EXISTS', unpack(keys)) or 0
  end
  if call.waiting == 0 then
    writes.flush()
    local shared = { K.event_groups, K.event_groups_waiting, K.event_groups_times, K.event_groups_turns, K.event_groups_blocked, K.event_groups_look }
    for _, name in ipairs(shared) do
      writes.delete(P .. name)
    end
  else
    writes.set(P .. K.event_groups_waiting, string.format('%.0f', call.waiting))
  end
  call.markers_left = call.waiting
  -- Whether a call may claim more now. After the last name that may be claimed, no turn is left.
  local is_over = call.limited and budget.claims_left > 0 and call.markers_max > 0 and not next_class()
  local has_more = call.limited and (has_moved or rare.share_limits.has_more() or parks_left <= 0)
  local is_idle = is_full or is_over and not has_more or has_rotated and not call.took[1]
  call.ready = call.limited and is_idle and 0 or call.waiting
end

return { open = open, admits = admits, take = take, trim = trim, close = close }
