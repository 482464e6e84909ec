-- share_limits (passing): how many objects of a share may be in hand, and how many events it may
-- take per second.

-- The most groups that a call lets have turns again. Of groups that wait for a share of a shorter
-- prefix, the most prefixes and groups.
local UNPARK_MAX, PREFIXES_MAX, CHILDREN_MAX = 64, 4, 16
-- A group that waits for an object in hand has a score above LATER, because no time wakes a worker for
-- it. The release of an object lowers the score. For safety, a call also looks at LOOKS_MAX groups that
-- have waited for LOOK_MS.
local LATER, LOOKS_MAX, LOOK_MS = 1000000000000000, 16, 1000
-- A group that waits for events per second waits for those of this time, in us, at the least, and looks
-- again after DUE_MAX_MS. A later time comes from a clock that has stepped back.
local WAIT_US, DUE_MAX_MS = 20000, 10000
-- A group that has waited goes before the others by a part of a claim.
local AHEAD = 0.5
-- A share may be ahead of its rate by its burst, and by the events of a held batch.
local HELD_MAX = 1000
-- A worker with a free slot looks at such groups after WAIT_MS at the earliest. One worker looks when a
-- look is of use. Each other one looks up to WAIT_MS for each worker name later, OTHERS_MAX_MS at most.
-- If the look of the one is LATE_MS late, the next of the others takes its place.
local WAIT_MS, NEAR_MS, LATE_MS, OTHERS_MAX_MS = 20, 2, 10, 400
-- The most fields that one command reads or writes.
local FIELDS_MAX = 500

-- By prefix, `*` for all objects: a share with a limit. `room`: the objects that may still be
-- claimed. `tat`: the time, in us, up to which the events that were taken use the rate.
local counters = {}
-- By group: the counters of its shares.
local of_group = {}
-- By prefix: the events that the call has taken.
local taken = {}
-- The counters and the number of events of the claim that was admitted last.
local admitted, asked = nil, 0
-- Whether the call has let groups have turns again, and whether others are left for the next call.
local has_unparked, has_more = false, false
-- The prefixes with groups that are left for the next call, as far as no group has begun to wait for
-- the prefix since.
local left_over = {}

-- Returns the counter of a share with a limit. Its state is read when it is needed.
local function counter_of(prefix, share)
  local counter = counters[prefix]
  if not counter then
    counter = { prefix = prefix, in_flight = share.in_flight, rate = share.rate, burst = share.burst or 1 }
    counters[prefix] = counter
  end
  return counter
end

-- Reads the times up to which the events that these counters have taken use their rates.
local function read_rates(asked_of)
  local selectors = {}
  for k, counter in ipairs(asked_of) do
    selectors[k] = counter.prefix == '*' and '*' or rare.shares.selector_of(counter.prefix)
  end
  for k, text in ipairs(selectors[1] and redis_call('HMGET', P .. K.event_shares_used, unpack(selectors)) or {}) do
    local counter, tat = asked_of[k], rare.shares.used_of(text or '').tat
    counter.tat = math.min(tat, rare.time.now_us() + (counter.burst + HELD_MAX) * 1000000 / counter.rate)
    if counter.tat < tat then
      -- The clock has stepped back. The time is stored, or the share would never catch up.
      taken[counter.prefix] = taken[counter.prefix] or 0
    end
  end
end

-- Returns the events that the rate of the counter allows now.
local function tokens_of(counter)
  if not counter.tat then
    read_rates({ counter })
  end
  local ahead = math.max(counter.tat - rare.time.now_us(), 0)
  return math.floor(counter.burst - ahead * counter.rate / 1000000 + 0.000001)
end

-- Returns the objects of a counter that may still be claimed; nil if any number may. Asks for the
-- objects in hand at the first claim, because slots leave objects before that.
local function room_of(counter)
  if counter.in_flight and not counter.room then
    local key, prefix = P .. K.objects_in_hand, counter.prefix
    local in_hand = prefix == '*' and redis_call('ZCARD', key) or redis_call('ZLEXCOUNT', key, '[' .. prefix .. ':', '(' .. prefix .. ';')
    counter.room = counter.in_flight - in_hand
  end
  return counter.room
end

-- Returns the counters of the shares that limit a group.
local function counters_of(group)
  local found = of_group[group]
  if not found then
    found = {}
    for _, prefix in ipairs(rare.known_shares.owners_of(group)) do
      local share = rare.known_shares.share_of(prefix)
      if share.in_flight or share.rate then
        found[#found + 1] = counter_of(prefix, share)
      end
    end
    of_group[group] = found
  end
  return found
end

-- Reads the rates of these groups in one step.
local function learn_all(groups)
  local new = {}
  for _, group in ipairs(groups) do
    for _, counter in ipairs(counters_of(group)) do
      if counter.rate and not counter.tat and not counter.is_asked then
        counter.is_asked, new[#new + 1] = true, counter
      end
    end
  end
  read_rates(new)
end

-- Returns the objects of a group that may still be claimed, and the counter that allows the fewest.
local function room(group)
  local least, by = math.huge, nil
  for _, counter in ipairs(counters_of(group)) do
    local own = math.min(room_of(counter) or math.huge, counter.rate and tokens_of(counter) or math.huge)
    if own < least then
      least, by = own, counter
    end
  end
  return least, by
end

-- Returns whether an object of a group may be claimed. `held`: whether it has a held batch. If not,
-- also returns the counter that does not allow it.
local function admits(group, object, held)
  admitted, asked = counters_of(group), 1
  for _, counter in ipairs(admitted) do
    if (room_of(counter) or 1) <= 0 then
      return false, counter
    elseif counter.rate then
      if held and asked == 1 then
        local count = redis_try('LLEN', P .. object .. K.events_held)
        asked = type(count) == 'number' and math.max(count, 1) or 1
      end
      if tokens_of(counter) < math.min(asked, counter.burst) then
        counter.asked = asked
        return false, counter
      end
    end
  end
  return true
end

-- Takes events off the rate of a counter.
local function charge(counter, events)
  if counter.rate then
    tokens_of(counter)
    counter.tat = math.max(counter.tat, rare.time.now_us()) + events * 1000000 / counter.rate
  end
end

-- Counts the object that was admitted last as claimed.
local function claimed()
  for _, counter in ipairs(admitted) do
    counter.room = counter.room and counter.room - 1
    charge(counter, asked)
  end
end

-- Counts events of an object that were taken, for its shares.
local function count(object, events)
  for _, prefix in ipairs(rare.known_shares.owners_of(rare.known_shares.known_group_of(object))) do
    taken[prefix] = (taken[prefix] or 0) + events
  end
end

-- Counts events that a slot has taken beside the claim of their object.
local function took(object, events)
  count(object, events)
  for _, counter in ipairs(call.limited and counters_of(rare.known_shares.known_group_of(object)) or {}) do
    charge(counter, events)
  end
end

-- Returns the number of further events that a slot may take of its object.
local function events_left(object)
  local least = math.huge
  for _, counter in ipairs(call.limited and counters_of(rare.known_shares.known_group_of(object)) or {}) do
    least = math.min(least, counter.rate and tokens_of(counter) or math.huge)
  end
  return least
end

-- Returns the score in event.groups.blocked of a group that waits for a counter.
local function due_of(counter)
  if counter.room and counter.room <= 0 then
    return LATER + rare.time.now_ms()
  end
  local asked_us = math.max((counter.asked or 1) * 1000000 / counter.rate, WAIT_US)
  local burst_us = counter.burst * 1000000 / counter.rate
  local now_us = rare.time.now_us()
  local due_us = math.max(counter.tat + math.min(asked_us, burst_us) - burst_us, now_us)
  return math.ceil(math.min(due_us, now_us + DUE_MAX_MS * 1000) / 1000)
end

-- Lets the turns of a group wait until its limit allows a claim again. The score of the group says
-- that it waits. `by`: the counter that allows no claim.
local function park(group, pass, by)
  local member = by.prefix == group and group or by.prefix .. '\n'
  -- Without room for an object, no time before the next release is of use.
  -- If the prefix allows no claim, the groups that were left for the next call wait for it as well.
  redis_call('ZADD', P .. K.event_groups_blocked, due_of(by) < LATER and not left_over[member] and 'LT' or 'CH', due_of(by), member)
  left_over[member] = nil
  redis_call('ZADD', P .. K.event_groups, 'XX', pass + rare.shares.PARKED, group)
end

-- Returns the members of event.groups.blocked as the keys of a table, and whether one of them is a
-- prefix.
local function read_waits()
  local waits, has_prefix = {}, false
  for _, member in ipairs(redis_call('ZRANGE', P .. K.event_groups_blocked, '0', '-1')) do
    waits[member], has_prefix = true, has_prefix or string.sub(member, -1) == '\n'
  end
  return waits, has_prefix
end

-- Returns whether a group is a member of `waits`, or one of its prefixes is.
local function is_in(waits, has_prefix, group)
  local found = waits[group] or false
  for _, prefix in ipairs(has_prefix and not found and rare.shares.prefixes_of(group, rare.shares.PARTS_MAX) or {}) do
    found = found or waits[prefix .. '\n'] or false
  end
  return found
end

-- Adds to `groups` the groups that wait for a limit of one of these prefixes, those with the lowest
-- passes first; without prefixes, any groups that wait. A group that also waits for another limit is
-- left out until that one is due: otherwise such groups would keep those with higher passes waiting.
-- Returns whether others may be left.
local function add_waiting(groups, prefixes)
  local count, waits, has_prefix = 0, read_waits()
  for _, group in ipairs(redis_call('ZRANGE', P .. K.event_groups, rare.shares.PARKED - rare.shares.CLASS, '+inf', 'BYSCORE')) do
    local is_of = not prefixes
    for _, prefix in ipairs(prefixes or {}) do
      is_of = is_of or group == prefix or string.sub(group, 1, #prefix + 1) == prefix .. ':'
    end
    if is_of and not is_in(waits, has_prefix, group) then
      if count == CHILDREN_MAX then
        return true
      end
      count, groups[#groups + 1] = count + 1, group
    end
  end
  return false
end

-- Takes the members out of event.groups.blocked whose time has come. Returns the groups that may have
-- turns again.
local function due_groups()
  local key, now_ms = P .. K.event_groups_blocked, rare.time.now_ms()
  local due = redis_call('ZRANGE', key, '-inf', now_ms, 'BYSCORE', 'LIMIT', '0', UNPARK_MAX)
  for _, range in ipairs({ { LATER, LATER + now_ms - LOOK_MS }, { now_ms + 2 * DUE_MAX_MS, LATER } }) do
    for _, member in ipairs(redis_call('ZRANGE', key, range[1], range[2], 'BYSCORE', 'LIMIT', '0', LOOKS_MAX)) do
      due[#due + 1] = member
    end
  end
  local groups, prefixes, over = {}, {}, {}
  for _, member in ipairs(due) do
    if string.sub(member, -1) ~= '\n' then
      groups[#groups + 1], over[#over + 1] = member, member
    elseif #prefixes < PREFIXES_MAX then
      prefixes[#prefixes + 1], over[#over + 1] = string.sub(member, 1, -2), member
    else
      has_more = true
    end
  end
  if over[1] then
    redis_call('ZREM', key, unpack(over))
  end
  if prefixes[1] and add_waiting(groups, prefixes) then
    -- The others have a look in the next call.
    has_more = true
    for _, prefix in ipairs(prefixes) do
      redis_call('ZADD', key, '0', prefix .. '\n')
      left_over[prefix .. '\n'] = true
    end
  elseif not due[1] and call.waiting > 0 and redis_call('ZCARD', key) == 0 then
    -- The key was deleted.
    has_more = add_waiting(groups, nil)
  end
  return groups
end

-- Lets groups have turns again if their limits may allow a claim. A group that has waited gets no
-- claims for this time: the passes of these groups rise nearly to the lowest of the others, by the same
-- number for all groups of a class. With the very same pass, the order of names would decide each time.
local function unpark()
  local groups = due_groups()
  local passes, lowest = {}, {}
  for g, score in ipairs(groups[1] and redis_call('ZMSCORE', P .. K.event_groups, unpack(groups)) or {}) do
    local pass = score and tonumber(score) - rare.shares.PARKED
    if pass and pass >= -rare.shares.CLASS then
      local class = rare.shares.class_of(pass)
      passes[groups[g]], lowest[class] = pass, math.min(lowest[class] or pass, pass)
    end
  end
  local shift, scores = {}, {}
  for class, pass in pairs(lowest) do
    local first = math.max(tonumber(rare.shares.first_pass(class)) - 1 - AHEAD, class * rare.shares.CLASS)
    shift[class] = math.max(first - pass, 0)
  end
  for group, pass in pairs(passes) do
    scores[#scores + 1], scores[#scores + 2] = pass + shift[rare.shares.class_of(pass)], group
  end
  if scores[1] then
    redis_call('ZADD', P .. K.event_groups, unpack(scores))
    has_unparked = true
  end
end

-- Returns whether groups are left that a further call may let have turns.
local function get_has_more()
  return has_more
end

-- Removes the objects that slots have left from the objects in hand.
local function release()
  local members, objects = {}, {}
  for i = 1, call.slots_n do
    local object = call.slots[i].left
    if object then
      members[#members + 1], objects[#objects + 1] = object .. ':', object
    end
  end
  if members[1] then
    redis_call('ZREM', P .. K.objects_in_hand, unpack(members))
    if call.limited then
      rare.shares.look_again(objects)
    end
  end
end

-- Adds the events that were taken to the figures of their shares.
local function write_used()
  local prefixes, selectors = {}, {}
  for prefix in pairs(taken) do
    prefixes[#prefixes + 1] = prefix
    selectors[#selectors + 1] = prefix == '*' and prefix or rare.shares.selector_of(prefix)
  end
  for at = 1, #selectors, FIELDS_MAX do
    local last = math.min(at + FIELDS_MAX - 1, #selectors)
    local found, fields = redis_call('HMGET', P .. K.event_shares_used, unpack(selectors, at, last)), {}
    for k = at, last do
      local used, counter = rare.shares.used_of(found[k - at + 1]), counters[prefixes[k]]
      local text = rare.shares.used_text(used, taken[prefixes[k]], counter and counter.tat, rare.time.now_ms())
      fields[#fields + 1], fields[#fields + 2] = selectors[k], text
    end
    redis_call('HSET', P .. K.event_shares_used, unpack(fields))
  end
end

-- Writes the objects that the call has claimed, and the events that it has taken. If the call leaves
-- names behind to which it has opened the way, wakes another worker.
local function close()
  local members = {}
  for _, object in ipairs(call.took) do
    if not call.excluded[object] then
      members[#members + 1], members[#members + 2] = '0', object .. ':'
    end
    count(object, 1)
  end
  if members[1] then
    redis_call('ZADD', P .. K.objects_in_hand, unpack(members))
  end
  write_used()
  if has_unparked and (call.ready or 0) > 0 and budget.claims_left <= 0 and redis_call('LLEN', P .. K.objects_with_events) == 0 then
    redis_call('RPUSH', P .. K.objects_with_events, '')
  end
end

-- Returns the time, in ms, after which a worker looks that leaves the next look to another worker. The
-- name decides, so that these workers look at different times.
local function others_ms(name)
  local names = redis_try('ZCARD', P .. K.event_workers_watched)
  local most_ms = math.min(WAIT_MS * (type(names) == 'number' and names or 1), OTHERS_MAX_MS)
  local part = tonumber(string.sub(redis.sha1hex(name), 1, 4), 16) / 65536
  return math.floor(most_ms * (1 + part) / 2)
end

-- Returns the time, in ms, at which the caller should look again, if a look at `ms` is of use; none:
-- `inf`. A caller without a free slot needs no time: when a slot becomes free, the caller makes a call.
-- If the next look was to be its own, it wakes another worker.
local function look_ms(ms)
  local key, name, now_ms = P .. K.event_groups_look, call.name, rare.time.now_ms()
  local stored = redis_try('GET', key)
  local at, by = string.match(type(stored) == 'string' and stored or '', '^(%d+) (.*)$')
  if call.claims_wanted <= #call.took then
    if by == name then
      redis_call('SET', key, '0 ')
    end
    -- If the worker that wakes finds an object for its last slot, it wakes a further one.
    if (by == name or by == '') and redis_call('LLEN', P .. K.objects_with_events) == 0 then
      redis_call('RPUSH', P .. K.objects_with_events, '')
    end
    return math.huge
  end
  local soon = math.max(ms, now_ms + WAIT_MS)
  at = by and by ~= name and tonumber(at) or 0
  if at >= now_ms - LATE_MS and at <= soon + NEAR_MS then
    return soon + others_ms(name)
  end
  redis_call('SET', key, string.format('%.0f ', soon) .. name)
  return soon
end

-- Returns the time, in ms, at which the caller should look again at the groups that wait for events
-- per second; none: `inf`.
local function next_ms()
  local of_all = call.full_by and call.waiting > 0 and due_of(call.full_by) or math.huge
  local soonest = redis_call('ZRANGE', P .. K.event_groups_blocked, '0', '0', 'WITHSCORES')[2]
  local ms = math.min(of_all, tonumber(soonest) or math.huge)
  return ms < LATER and look_ms(ms) or math.huge
end

-- Returns the soonest of the due held objects and of the groups that wait for a limit, as ZRANGE does
-- with scores. `soonest`: the held object with the lowest score.
local function soonest_of(soonest)
  if soonest[2] and tonumber(soonest[2]) <= rare.time.now_ms() then
    -- A score below 0 says only that the name of the object is grouped. The call may have set it.
    soonest = redis_call('ZRANGE', P .. K.objects_held, '0', '+inf', 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')
  end
  local ms = math.min(next_ms(), tonumber(soonest[2]) or math.huge)
  return ms < math.huge and { '', ms } or {}
end

-- Fails if a key of the shares has a wrong type.
local function check_types()
  redis_call('ZCARD', P .. K.objects_in_hand)
  redis_call('ZCARD', P .. K.event_groups_blocked)
  redis_call('HLEN', P .. K.event_shares_used)
  redis_call('HLEN', P .. K.event_shares)
end

return {
  learn_all = learn_all, room = room, admits = admits, claimed = claimed, count = count, took = took, events_left = events_left, park = park,
  unpark = unpark, has_more = get_has_more, release = release, close = close, soonest = soonest_of, check_types = check_types,
}
