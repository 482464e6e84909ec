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
-- ids: whole numbers from 0 to 2^53 - 1, as text.
local ID_MAX = 9007199254740991

-- The number, or nil where the text is none. `tonumber` alone takes `nan`, `1e5`, `0x10` and ` 7` for numbers.
local function id_of(text)
  local id = #text <= 16 and string.find(text, '^%d+$') and tonumber(text)
  return id and id <= ID_MAX and id or nil
end
-- rights: whether the Redis user may do everything the scripts do. A right that is missing in the middle of a script could strand an event.

-- Answers the first command that is not allowed, or nil.
local function missing_right()
  local key, other = P .. next_event_id, P .. objects_with_events
  local needed = {
    { 'BLMOVE', other, key, 'RIGHT', 'LEFT', '1' },
    { 'DEL', key }, { 'EXISTS', key }, { 'GET', key }, { 'HDEL', key, 'f' }, { 'HGET', key, 'f' }, { 'HGETALL', key }, { 'HLEN', key },
    { 'HMGET', key, 'f' }, { 'HSCAN', key, '0' }, { 'HSET', key, 'f', 'v' }, { 'LINDEX', key, '0' }, { 'LLEN', key },
    { 'LMOVE', other, key, 'RIGHT', 'LEFT' }, { 'LPUSH', key, 'v' }, { 'LRANGE', key, '0', '0' }, { 'LREM', key, '1', 'v' },
    { 'LSET', key, '0', 'v' }, { 'LTRIM', key, '0', '0' }, { 'MGET', key }, { 'MSET', key, 'v' }, { 'PEXPIRE', key, '1' }, { 'PTTL', key },
    { 'RENAME', key, other }, { 'RPOP', key, '1' }, { 'RPUSH', key, 'v' }, { 'SET', key, 'v' }, { 'STRLEN', key }, { 'TIME' },
    { 'TYPE', key }, { 'XADD', key, '*', 'f', 'v' }, { 'XTRIM', key, 'MAXLEN', '1' }, { 'ZADD', key, '0', 'm' }, { 'ZCARD', key },
    { 'ZRANGE', key, '0', '0' }, { 'ZREM', key, 'm' }, { 'ZSCORE', key, 'm' },
  }
  for _, command in ipairs(needed) do
    if not redis.acl_check_cmd(unpack(command)) then
      return command[1]
    end
  end
end
-- connect: the first script on every new connection of a worker process.
--
-- Purpose   Notices that Redis may have lost writes (failover, restart, an emptied server) and makes sure that no id is ever given twice:
--           where the server's replication id changed, or the counter is below the highest id the caller has seen, the counter jumps to
--           the time in microseconds. As long as fewer than a million ids a second are given, that is beyond every id given after
--           an earlier jump, also where Redis has lost that jump and nobody remembers those ids.
--           Writes down whether the event log is on, for those who finalize events and are no workers.
--           Refuses a user who may not do all that the scripts do.
-- Keys      KEYS[1] seriatim.meta (hash, read and write); next.event.id (string, read and write)
-- Arguments prefix; replication id ('' = unknown); highest id seen by the caller (0 = none); lowest first id (0 = none); jump where the
--           counter is ahead of the time (ids); 1 where the event log is on, or 0
-- Replies   {'ok', counter jumped 0|1, counter} | {'schema', version} | {'counter', value}: next.event.id is no whole number below 2^53
--           | {'denied', command}
-- Keeps     I5 (ids)
-- Cost      O(1)
local replication_id, highest, first_id, jump, log = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]

local denied = missing_right()
if denied then
  return { 'denied', denied }
end
local seen = redis.call('HMGET', KEYS[1], 'schema', 'replication.id', 'event.log')
local value = redis.call('GET', P .. next_event_id)
local counter = id_of(value or '0')
if seen[1] and seen[1] ~= '1' then
  return { 'schema', seen[1] }
elseif not counter then
  return { 'counter', value }
end

-- An emptied Redis has no replication id to compare with, but its counter tells.
local changed = replication_id ~= '' and seen[2] and seen[2] ~= replication_id or counter < highest
if changed then
  local time, known = redis.call('TIME'), math.max(counter, highest)
  local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
  counter = now_us > known and now_us or known + jump
end
if first_id > 0 and counter < first_id - 1 then
  counter = first_id - 1
end
local text = string.format('%.0f', counter)
if text ~= (value or '0') then
  redis.call('SET', P .. next_event_id, text)
end
if not seen[1] then
  redis.call('HSET', KEYS[1], 'schema', '1', 'partitions', '1')
end
if replication_id ~= '' and seen[2] ~= replication_id then
  redis.call('HSET', KEYS[1], 'replication.id', replication_id)
end
if log == '1' and not seen[3] then
  redis.call('HSET', KEYS[1], 'event.log', 'on')
elseif log ~= '1' and seen[3] then
  redis.call('HDEL', KEYS[1], 'event.log')
end
return { 'ok', changed and 1 or 0, text }
