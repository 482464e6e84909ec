-- inspect: reads everything about one object at one moment.
--
-- Purpose   Shows where the events of the object are, why they wait, and who owns it. Writes
--           nothing.
-- Keys      KEYS[1] event.workers (hash); only routes the call
--           all other keys, spelled from the prefix: read
-- Arguments prefix
--           object
--           bytes to show of an event (1 and more)
-- Replies   {'inspected', field, value, field, value, …}. A field without a value is left out.
--           `wrong`, `rule`, `share`, `error`, `result` and `schedule` may come several times.
--           src/control/inspect/fields.rs lists the fields
-- Keeps     writes nothing
-- Cost      LPOS over at most 10,000 markers, up to 17 times, and over 10,000 names of each group to
--           which the object can belong and that waits; about 40 commands; 5 per share; 2 per stored result, of
--           at most 64 KiB together; 1 per schedule, of at most 100 and 1 MiB.
--           lua/taken.lua shows which workers have the object in their lists

local object = ARGV[2]
local text_bytes_max = tonumber(ARGV[3])

local ERRORS_MAX = 20
local RESULTS_BYTES_MAX = 65536
local SCHEDULES_MAX = 100
-- The most markers that are searched. The search begins with the marker that is taken next.
local MARKERS_MAX = 10000

local reply = {'inspected'}

-- Adds a field to the reply, unless it has no value.
local function tell(field, value)
  if value then
    reply[#reply + 1] = field
    reply[#reply + 1] = type(value) == 'number' and string.format('%.0f', value) or value
  end
end

-- Returns the number of marks that are taken before the marker at `index`, counted from the head of
-- the list of `markers` markers. Also adds a field: the time of the first mark that was pushed
-- after this marker. Marks stand in the list in the order of their times.
local function marks_around(index, markers)
  local key = P .. K.event_marks
  local first = redis_call('ZRANGE', key, 0, 0)[1] == rare.marks.MET and 1 or 0
  local low, high = first, redis_call('ZCARD', key)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local mark = '\0t' .. redis_call('ZRANGE', key, middle, middle)[1]
    local at = redis_call('LPOS', P .. K.objects_with_events, mark, 'RANK', -1, 'MAXLEN', markers - index)
    if at and at > index then
      low = middle + 1
    else
      high = middle
    end
  end
  tell('marked_before_ms', redis_call('ZRANGE', key, low, low, 'WITHSCORES')[2])
  return low - first
end

-- Returns whether the key exists with this type. Another type becomes a field `wrong`.
local function expect(key, wanted)
  local found = redis_call('TYPE', key).ok
  if found ~= wanted and found ~= 'none' then tell('wrong', key .. ' is a ' .. found .. ', it should be a ' .. wanted) end
  return found == wanted
end

-- Adds the number of events in a list, the size of its oldest event, and the beginning of that
-- event.
local function tell_list(key, count_field, text_field, bytes_field)
  if not expect(key, 'list') then return end
  tell(count_field, redis_call('LLEN', key))
  local oldest = redis_call('LINDEX', key, -1)
  -- The oldest event may be queued as a reference to a schedule.
  local time_us, chosen = rare.schedules.referred(oldest)
  local score = chosen and redis_try('ZSCORE', P .. K.events_scheduled, rare.schedules.member(object, chosen))
  if type(score) == 'string' and rare.schedules.counts(score, time_us) then
    local event = redis_try('HGET', P .. object .. K.events_scheduled_of, chosen)
    oldest = type(event) == 'string' and event or oldest
  elseif chosen then
    oldest = 'replaced or cancelled: ' .. chosen
  end
  tell(bytes_field, #oldest)
  tell(text_field, string.sub(oldest, 1, text_bytes_max))
end

-- Returns the value of a string; false if it is absent or no string.
local function string_at(key)
  return expect(key, 'string') and redis_call('GET', key)
end

local base = P .. object
tell('now_ms', rare.time.now_ms())
tell_list(base .. K.events, 'queued', 'queued_text', 'queued_bytes')
tell_list(base .. K.events_held, 'held', 'held_text', 'held_bytes')
tell('held_id', string_at(base .. K.events_held_id))
tell('last', string_at(base .. K.last_event_id))
if expect(base .. K.event_errors, 'list') then
  for _, kept in ipairs(redis_call('LRANGE', base .. K.event_errors, 0, ERRORS_MAX - 1)) do tell('error', kept) end
end
-- The results of handlers of the event in hand, up to the limit of bytes.
local handled = base .. K.event_handled
if redis_call('TYPE', handled).ok == 'hash' then
  local left = RESULTS_BYTES_MAX
  for _, field in ipairs(redis_call('HKEYS', handled)) do
    if rare.emits.is_result(field) then
      left = left - redis_call('HSTRLEN', handled, field)
      if left >= 0 then tell('result', redis_call('HGET', handled, field)) end
    end
  end
  tell('handled_id', redis_call('HGET', handled, 'id'))
end
if expect(P .. K.objects_held, 'zset') then tell('due_ms', redis_call('ZSCORE', P .. K.objects_held, object)) end
if expect(P .. K.objects_paused, 'zset') and redis_call('ZSCORE', P .. K.objects_paused, object) then tell('paused', 1) end
if expect(P .. K.event_rules, 'hash') then
  local fields = rare.rules.fields_of(object)
  for at, value in ipairs(redis_call('HMGET', P .. K.event_rules, unpack(fields))) do
    if value then tell('rule', #fields[at] .. ' ' .. fields[at] .. value) end
  end
end

-- Adds the share of this prefix, `*` for all objects: the objects in hand; whether the group of the
-- prefix waits for it, and whether other groups do; and the events taken.
local function tell_share(prefix, selector, value)
  local key, blocked = P .. K.objects_in_hand, P .. K.event_groups_blocked
  local in_hand = prefix == '*' and redis_try('ZCARD', key) or redis_try('ZLEXCOUNT', key, '[' .. prefix .. ':', '(' .. prefix .. ';')
  local used = redis_try('HGET', P .. K.event_shares_used, selector)
  used = type(used) == 'string' and used or ''
  local by_group, by_others = redis_try('ZSCORE', blocked, prefix), redis_try('ZSCORE', blocked, prefix .. '\n')
  local numbers = {
    type(in_hand) == 'number' and in_hand or '-', type(by_group) == 'string' and 1 or 0, type(by_others) == 'string' and 1 or 0,
    #used, #selector,
  }
  tell('share', table.concat(numbers, ' ') .. ' ' .. used .. selector .. value)
end

-- The shares that match the object, that with the longest prefix last.
if expect(P .. K.event_shares, 'hash') then
  local prefixes, selectors = { '*' }, { '*' }
  for p, prefix in ipairs(rare.shares.prefixes_of(object, rare.shares.PARTS_MAX)) do
    prefixes[p + 1], selectors[p + 1] = prefix, rare.shares.selector_of(prefix)
  end
  for at, value in ipairs(redis_call('HMGET', P .. K.event_shares, unpack(selectors))) do
    if value then tell_share(prefixes[at], selectors[at], value) end
  end
end
if expect(P .. K.objects_with_events, 'list') then
  local marker = redis_call('LPOS', P .. K.objects_with_events, object, 'RANK', -1, 'MAXLEN', MARKERS_MAX)
  local markers = redis_call('LLEN', P .. K.objects_with_events)
  if marker then
    local before = expect(P .. K.event_marks, 'zset') and marks_around(marker, markers) or 0
    tell('markers_before', markers - 1 - marker - before)
  end
  if not marker and markers > MARKERS_MAX then tell('markers_beyond', 1) end
end

-- Returns the groups to which the object can belong, those with many parts first. Workers with
-- different depths put an object in different groups.
local function groups_of()
  local groups = { object }
  for depth = rare.group.DEPTH_MAX, 1, -1 do
    local group = rare.group.of(object, depth)
    groups[#groups + 1] = group ~= groups[#groups] and group or nil
  end
  groups[#groups + 1] = rare.group.REST
  return groups
end

-- The group for which the name of the object is grouped, and the number of names before it. If a
-- list is longer than the search, the name may be behind the names that were searched.
if expect(P .. K.event_groups, 'zset') then
  tell('groups', redis_call('ZCARD', P .. K.event_groups))
  local found, beyond, scores = nil, nil, {}
  for _, group in ipairs(groups_of()) do
    local list, score = rare.group.key(group), redis_call('ZSCORE', P .. K.event_groups, group)
    scores[group] = tonumber(score or 0)
    if score and expect(list, 'list') then
      local place, length = redis_call('LPOS', list, object, 'RANK', '-1', 'MAXLEN', MARKERS_MAX), redis_call('LLEN', list)
      if place then
        found = group
        tell('group', group)
        tell('group_before', length - 1 - place)
        break
      end
      beyond = beyond or length > MARKERS_MAX and group or nil
    end
  end
  tell('group_beyond', beyond)
  tell('group_parked', (scores[found or beyond] or 0) >= rare.shares.PARKED - rare.shares.CLASS and 1 or nil)
end

-- The schedules of the object: their number, and some of them.
local schedules = base .. K.events_scheduled_of
if expect(schedules, 'hash') then
  tell('schedules', redis_call('HLEN', schedules))
  local has_times = expect(P .. K.events_scheduled, 'zset')
  for i, key in ipairs((rare.schedules.scan(schedules, '0', SCHEDULES_MAX))) do
    if i <= SCHEDULES_MAX then
      local score = has_times and redis_call('ZSCORE', P .. K.events_scheduled, rare.schedules.member(object, key))
      local due, is_queued = '-', false
      if score then
        due, is_queued = rare.schedules.due_of(score)
      end
      tell(is_queued and 'schedule_queued' or 'schedule', due .. ' ' .. key)
    end
  end
end

local owner = string_at(base .. K.event_worker)
tell('owner', owner)
if owner and owner ~= 'held' then
  local worker = P .. K.WORKER .. owner
  tell_list(worker .. K.worker_event, 'batch', 'batch_text', 'batch_bytes')
  local stored = string_at(worker .. K.worker_event_id)
  tell('batch_id', stored and (rare.tag.split(stored)))
  local name = rare.worker.parse(owner) or owner
  local lease = string_at(P .. K.WORKER .. name .. K.worker_lease)
  local registration, _, slot = redis_try('HGET', P .. K.event_workers, name), rare.worker.parse(owner)
  local slots = type(registration) == 'string' and tonumber(string.match(registration, '^(%d+) ')) or 0
  tell('owner_unknown', (slot or 0) >= slots and 1 or nil)
  tell('lease', lease)
  if lease then tell('lease_ttl_ms', redis_call('PTTL', P .. K.WORKER .. name .. K.worker_lease)) end
end

return reply
