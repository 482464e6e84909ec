-- shares: the shares that operators have set, and the weight and the priority of a group.
--
--   event.shares (hash)            by selector, `PREFIX:*`: `WEIGHT PRIORITY IN_FLIGHT RATE BURST SET
--                                  WHO_BYTES WHO WHY`, without a space between WHO and WHY. `-`
--                                  stands for a part that is not set
--   event.shares.summary (string)  `MODE PARTS EPOCH`: MODE is 0 if objects in hand are only counted, 1
--                                  if there are shares, 2 if a share has a limit. PARTS: the most
--                                  parts of a prefix with a share. EPOCH: the time in ms since when
--                                  objects in hand are counted. Absent if there is no share
--   objects.in.hand (zset)         `OBJECT:` of each object that a slot owns. All scores are 0
--   event.shares.used (hash)       by selector: `TAKEN TAT PERIOD THIS LAST`. TAKEN: the events taken so
--                                  far. TAT: the time in us up to which they use the rate. THIS and
--                                  LAST: the events taken in the period of 10 s with the number
--                                  PERIOD, and in the period before
--   event.groups.blocked (zset)    the groups whose turns wait for a limit. The score is the time in
--                                  ms of the next look at them; above 10^15 it is the time, plus
--                                  10^15, since when they wait for an object in hand. A member is a
--                                  group that waits for its own share; or PREFIX and a line feed, for
--                                  the groups that wait for the share of PREFIX. The scores of these
--                                  groups in event.groups are higher by PARKED
--   event.groups.look (string)     `MS NAME`: while groups wait for events per second: the time of the
--                                  next look at them in ms, and the worker that looks. NAME is empty
--                                  if it has no free slot any more
-- A share is for the objects whose names begin with `PREFIX:`, and for the object PREFIX itself.

-- The most shares. The most parts of a prefix.
local SHARES_MAX, PARTS_MAX = 1024, 8
-- Each priority has a range of scores in event.groups. CLASS is the size of the range: no group has
-- so many claims while it waits. The steps between two scores are at most 1/4096, so that a claim of
-- a group with weight 100 still counts.
local CLASS, PARKED = 1099511627776, 4398046511104
local PERIOD_MS, MEMBERS_MAX = 10000, 1000
local CLASSES = { high = -1, normal = 0, low = 1 }
-- The shares that were read, by their texts, SHARES_MAX at most. In a library the table lives on,
-- because each call reads the shares of its groups.
local known, known_n = {}, 0

-- Returns the first parts of a name, from one part up to `most` parts. If the whole name has no more
-- parts, it is the last of them.
local function prefixes_of(name, most)
  local prefixes, at = {}, 0
  for p = 1, most do
    at = string.find(name, ':', at + 1, true)
    prefixes[p] = at and string.sub(name, 1, at - 1) or name
    if not at then
      break
    end
  end
  return prefixes
end

-- Returns the selector of the share with this prefix.
local function selector_of(prefix)
  return prefix .. ':*'
end

-- Returns the prefix of a selector, and the number of its parts; nil if no share can have this
-- selector.
local function prefix_of(selector)
  if #selector < 3 or string.sub(selector, -2) ~= ':*' then
    return nil
  end
  -- The last colon of the selector ends the last part.
  local parts, at = 0, string.find(selector, ':', 1, true)
  while at do
    parts, at = parts + 1, string.find(selector, ':', at + 1, true)
  end
  if parts <= PARTS_MAX then
    return string.sub(selector, 1, -3), parts
  end
end

-- Returns a number above 0; nil for any other text, such as `nan`, with which nothing can be computed.
local function positive(text)
  local number = tonumber(text)
  return number and number > 0 and number <= ids.MAX and number or nil
end

-- Returns the parts of the value of a share; nil if it is none. A part that is not set is nil. The
-- caller changes no part.
local function parse(text)
  if known[text] then
    return known[text]
  end
  local weight, priority, in_flight, rate, burst, set_ms = string.match(text or '', '^(%S+) (%S+) (%S+) (%S+) (%S+) (%d+) %d+ ')
  if not weight then
    return nil
  elseif known_n >= SHARES_MAX then
    known, known_n = {}, 0
  end
  local share = {
    weight = positive(weight), class = CLASSES[priority], in_flight = positive(in_flight), rate = positive(rate), burst = positive(burst),
    set_ms = tonumber(set_ms),
  }
  known[text], known_n = share, known_n + 1
  return share
end

-- Returns the class of a score: -1 for high, 0 for normal, 1 for low.
local function class_of(score)
  return score < 0 and -1 or score < CLASS and 0 or 1
end

-- The scores that groups can have: those of the three classes, and those of groups that wait for a limit.
local PASSES = { { -CLASS, 2 * CLASS }, { PARKED - CLASS, PARKED + 2 * CLASS } }

-- Returns whether a score of event.groups is one that a group can have.
local function is_pass(score)
  for _, range in ipairs(PASSES) do
    if score >= range[1] and score < range[2] then
      return true
    end
  end
  return false
end

-- Returns the number of groups with a score that no group can have. They never have a turn.
local function without_turns()
  local key = P .. K.event_groups
  local count = redis_call('ZCARD', key)
  for _, range in ipairs(PASSES) do
    count = count - redis_call('ZCOUNT', key, range[1], string.format('(%.0f', range[2]))
  end
  return count
end

-- Returns the weight and the class of a group. They come from the longest prefix with a share that
-- sets them. `shares`: by prefix, the parts of its share, if there is one.
local function weigh(prefixes, shares)
  local weight, class = nil, nil
  for p = #prefixes, 1, -1 do
    local share = shares[prefixes[p]]
    weight, class = weight or share and share.weight, class or share and share.class
  end
  return weight or 1, class or 0
end

-- Returns the pass, as text, with which groups begin in a class where `lowest` is the lowest pass; nil
-- if the class has no group.
local function pass_behind(lowest, class)
  return string.format('%.17g', lowest and lowest + 1 or class * CLASS)
end

-- Returns the pass with which new groups of a class begin, as text: one above the lowest pass. With a
-- lower one, they would go before all others for as many claims as these have had. With the lowest
-- pass, groups that keep coming would go before those that have had a claim, for ever.
local function first_pass(class)
  local lowest = nil
  -- If all groups of the class wait for a limit, the lowest of these counts.
  for _, shift in ipairs({ 0, PARKED }) do
    if not lowest then
      local from, to = class * CLASS + shift, string.format('(%.0f', (class + 1) * CLASS + shift)
      local found = redis_call('ZRANGE', P .. K.event_groups, from, to, 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')[2]
      lowest = found and tonumber(found) - shift
    end
  end
  return pass_behind(lowest, class)
end

-- Makes calls look again at the groups that wait for a limit, because these objects have left their
-- slots.
local function look_again(objects)
  local key = P .. K.event_groups_blocked
  if redis_try('ZCARD', key) == 0 then
    return
  end
  local members, seen = {}, {}
  for _, object in ipairs(objects) do
    for _, prefix in ipairs(prefixes_of(object, PARTS_MAX)) do
      if not seen[prefix] then
        local m = #members
        seen[prefix], members[m + 1], members[m + 2], members[m + 3], members[m + 4] = true, '0', prefix, '0', prefix .. '\n'
      end
    end
  end
  for at = 1, #members, MEMBERS_MAX do
    redis_try('ZADD', key, 'XX', unpack(members, at, math.min(at + MEMBERS_MAX - 1, #members)))
  end
end

-- Removes an object that its slot has left from the objects in hand. The key is absent if no share is
-- set.
local function release(object)
  if redis_try('ZREM', P .. K.objects_in_hand, object .. ':') == 1 then
    look_again({ object })
  end
end

-- Returns the epoch of a summary, as text; nil if there is none.
local function epoch_of(summary)
  return string.match(summary or '', '^%d %d+ (%d+)$')
end

-- Returns the parts of a field of event.shares.used. Without a field, all are 0.
local function used_of(text)
  local taken, tat, period, this, last = string.match(text or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  return {
    taken = tonumber(taken) or 0, tat = tonumber(tat) or 0, period = tonumber(period) or 0, this = tonumber(this) or 0, last = tonumber(last) or 0,
  }
end

-- Returns the field of event.shares.used after further events were taken. `tat`: nil if it is as
-- before.
local function used_text(used, events, tat, now_ms)
  local period = math.floor(now_ms / PERIOD_MS)
  local this = period == used.period and used.this or 0
  local last = period == used.period and used.last or period == used.period + 1 and used.this or 0
  return string.format('%.0f %.0f %.0f %.0f %.0f', used.taken + events, tat or used.tat, period, this + events, last)
end

return {
  SHARES_MAX = SHARES_MAX, PARTS_MAX = PARTS_MAX, CLASS = CLASS, PARKED = PARKED, CLASSES = CLASSES, prefixes_of = prefixes_of, selector_of = selector_of,
  prefix_of = prefix_of, parse = parse, class_of = class_of, is_pass = is_pass, without_turns = without_turns, weigh = weigh, pass_behind = pass_behind,
  first_pass = first_pass, look_again = look_again, release = release, epoch_of = epoch_of, used_of = used_of, used_text = used_text,
}
