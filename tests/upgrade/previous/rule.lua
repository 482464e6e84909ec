#!lua flags=allow-oom
local WORKER = 'event.worker:'
local events = ':events'
local last_event_id = ':last.event.id'
local event_worker = ':event.worker'
local data = ':data'
local events_held = ':events.held'
local events_held_id = ':events.held.id'
local event_handled = ':event.handled'
local event_errors = ':event.errors'
local events_scheduled_of = ':events.scheduled'
local worker_object = ':object'
local worker_event = ':event'
local worker_event_id = ':event.id'
local worker_lease = ':lease'
local objects_with_events = 'objects.with.events'
local objects_held = 'objects.held'
local objects_paused = 'objects.paused'
local next_event_id = 'next.event.id'
local event_workers = 'event.workers'
local events_dead = 'events.dead'
local events_scheduled = 'events.scheduled'
local event_rules = 'event.rules'
local event_log = 'event.log'
local event_projections = 'event.projections'
local operator_actions = 'operator.actions'
local meta = 'seriatim.meta'
-- prefix: every script's first argument is what all keys begin with.
local P = ARGV[1]
-- rules: pauses and blocks. A field of event.rules is `KIND SELECTOR`; its value is numbers, then text of the lengths they tell:
-- `SET_MS END_MS LIFTED WHO_BYTES CURSOR_BYTES WHO CURSOR WHY`, without blanks between the texts. END_MS is 0 where the rule has no end; LIFTED is 1 once
-- it is lifted, and then the objects up to CURSOR, which may be any bytes, have been woken. The field `next` tells when a rule is to be woken next.

-- The longest prefix that a rule can name.
local PREFIX_MAX = 512

local function rule_of(value)
  local set, ends, lifted, who_len, cursor_len, text = string.match(value, '^(%d+) (%d+) ([01]) (%d+) (%d+) (.*)$')
  if not text then
    return nil
  end
  local cursor_at, why_at = 1 + who_len, 1 + who_len + cursor_len
  return {
    set = set, ends = tonumber(ends), lifted = lifted == '1', who = string.sub(text, 1, cursor_at - 1),
    cursor = string.sub(text, cursor_at, why_at - 1), why = string.sub(text, why_at),
  }
end

-- Not by %s, which cuts a name at a NUL.
local function rule_text(rule)
  local numbers = string.format('%s %.0f %d %d %d ', rule.set, rule.ends, rule.lifted and 1 or 0, #rule.who, #rule.cursor)
  return numbers .. rule.who .. rule.cursor .. rule.why
end

-- Whether it holds anything; what is lifted or past its end does not.
local function is_in_force(rule, now_ms)
  return not rule.lifted and (rule.ends == 0 or rule.ends > now_ms)
end

-- The fields of all rules that there could be for the object: for everything, for each prefix at a colon, for itself; blocks first.
local function rule_fields(object)
  local selectors, colon = { '*' }, string.find(object, ':', 1, true)
  while colon and colon <= PREFIX_MAX do
    selectors[#selectors + 1] = string.sub(object, 1, colon) .. '*'
    colon = string.find(object, ':', colon + 1, true)
  end
  selectors[#selectors + 1] = object
  local fields = {}
  for _, kind in ipairs({ 'block ', 'pause ' }) do
    for _, selector in ipairs(selectors) do
      fields[#fields + 1] = kind .. selector
    end
  end
  return fields
end

-- Whether a rule in force is over the object.
local function is_ruled(object, now_ms)
  for _, value in ipairs(redis.call('HMGET', P .. event_rules, unpack(rule_fields(object)))) do
    local rule = value and rule_of(value)
    if rule and is_in_force(rule, now_ms) then
      return true
    end
  end
  return false
end

-- When a rule is to be woken next, of all fields and values: 0 where one is lifted, else the first end, or `never`; nothing where there is no rule.
local function next_of(all)
  local soonest
  for i = 1, #all, 2 do
    if all[i] ~= 'next' then
      local rule = rule_of(all[i + 1])
      local at = rule and (rule.lifted and 0 or rule.ends > 0 and rule.ends) or math.huge
      soonest = math.min(soonest or at, at)
    end
  end
  return soonest and (soonest < math.huge and string.format('%.0f', soonest) or 'never')
end

local function write_next()
  local at = next_of(redis.call('HGETALL', P .. event_rules))
  if at then
    redis.call('HSET', P .. event_rules, 'next', at)
  else
    redis.call('HDEL', P .. event_rules, 'next')
  end
  return at
end
-- actions: what the scripts of an operator share. A call names who does what and why, and that is kept, about the last thousand of them.
local call = redis.call
local who, why = ARGV[2], ARGV[3]

-- Whatever could fail in the middle, because the user may not or a key has a wrong type, is asked for before anything is written.
-- Answers the reply to give, or nil.
local function refused(...)
  local key = P .. next_event_id
  local needed = {
    { 'DEL', key }, { 'HDEL', key, 'f' }, { 'HGET', key, 'f' }, { 'HGETALL', key }, { 'HLEN', key }, { 'HMGET', key, 'f' }, { 'HSET', key, 'f', 'v' },
    { 'LINDEX', key, '0' }, { 'LLEN', key }, { 'LPUSH', key, 'v' }, { 'MGET', key }, { 'RPOP', key }, { 'RPUSH', key, 'v' },
    { 'SET', key, 'v' }, { 'TIME' }, { 'TYPE', key }, { 'XADD', key, '*', 'f', 'v' }, { 'XDEL', key, '0-1' }, { 'XRANGE', key, '-', '+' },
    { 'ZADD', key, '0', 'm' }, { 'ZSCORE', key, 'm' },
  }
  for _, command in ipairs(needed) do
    if not redis.acl_check_cmd(unpack(command)) then
      return { 'denied', command[1] }
    end
  end
  local types = { P .. operator_actions, 'stream', P .. objects_with_events, 'list', ... }
  for i = 1, #types, 2 do
    local found = call('TYPE', types[i]).ok
    if found ~= types[i + 1] and found ~= 'none' then
      return { 'wrong_type', types[i], found }
    end
  end
end

-- Keeps what was done; further fields and values may follow.
local function note(action, object, id, ...)
  call('XADD', P .. operator_actions, 'MAXLEN', '~', '1000', '*', 'action', action, 'who', who, 'why', why, 'object', object, 'id', id, ...)
end

-- Makes a held object due at once, and wakes a worker that waits for markers.
local function make_due(object)
  call('ZADD', P .. objects_held, '0', object)
  call('RPUSH', P .. objects_with_events, '')
end
-- rule: an operator sets a pause or a block, or lifts one.
--
-- Purpose   set: what the selector means is claimed no more, from the next call of any worker on. A rule that is set already gets who, why and end
--           of this call; one that is being lifted is in force again, and its waking will begin anew.
--           lift: the rule holds nothing any more; workers wake what it has held, and then it goes. Nothing else is touched here, however many they are.
--           Repeating a call changes nothing but the time.
-- Keys      KEYS[1] event.rules (hash, read and write); operator.actions (stream, written); objects.with.events (list, written)
-- Arguments prefix; who; why; set | lift; pause | block; selector; ms after which the rule lifts itself (0: never); rules there may be
-- Replies   {'set', 'new' | 'again' | 'revived'} | {'lifted'} | {'lifting'}: it is lifted already, and its objects are being woken
--           | {'not_set'} | {'too_many', how many rules there are} | {'denied', command} | {'wrong_type', key, its type}
-- Keeps     I1 to I7: it holds nothing and wakes nothing
-- Cost      about 20 commands, one of which reads all rules
local step, kind, selector, for_ms, rules_max = ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local field = kind .. ' ' .. selector

local no = refused(KEYS[1], 'hash')
if no then
  return no
end
local time = call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local value = call('HGET', KEYS[1], field)
local rule = value and rule_of(value)

local function write(changed)
  call('HSET', KEYS[1], field, rule_text(changed))
  write_next()
end

if step == 'set' then
  -- One of the fields is no rule.
  local others = call('HLEN', KEYS[1]) - 1
  if not value and others >= rules_max then
    return { 'too_many', others }
  end
  local ends = for_ms > 0 and now_ms + for_ms or 0
  write({ set = string.format('%.0f', now_ms), ends = ends, lifted = false, who = who, cursor = '', why = why })
  note(kind, selector, '')
  return { 'set', not rule and 'new' or is_in_force(rule, now_ms) and 'again' or 'revived' }
end

if not value then
  return { 'not_set' }
elseif rule and rule.lifted then
  return { 'lifting' }
end
-- What nobody can read holds nothing, and is lifted by being replaced.
rule = rule or { set = '0', ends = 0, who = '', cursor = '', why = '' }
rule.lifted = true
write(rule)
call('RPUSH', P .. objects_with_events, '')
note(kind == 'pause' and 'resume' or 'unblock', selector, '')
return { 'lifted' }
