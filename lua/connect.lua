-- connect: the first script on every new connection of a worker process.
--
-- Purpose   Makes sure that no id is given twice, even if Redis has lost writes by a failover, a
--           restart or an eviction, or because the server was emptied. The counter jumps to the
--           time in microseconds in these cases:
--             the server's replication id has changed
--             the counter is absent, or below the highest id that the caller has seen
--             seriatim.meta is absent, so the namespace is new or was emptied, and the caller has
--               chosen no first id
--           The time is above every id given before, as long as fewer than a million ids a second
--           are given. That holds even if Redis has lost an earlier jump and no process remembers
--           its ids.
--           Records whether the event log is on: the scripts `skip` and `cancel`, which also
--           finalize events, read this. Records how many rows the log keeps: a worker without the
--           log must not trim the rows of workers with the log. Refuses an unknown version of the
--           protocol, and a user who lacks rights, before the first write.
-- Keys      KEYS[1] seriatim.meta (hash, read and write)
--           next.event.id (string, read and write)
-- Arguments prefix
--           replication id ('': unknown)
--           highest id that the caller has seen (0: none)
--           lowest first id, chosen by the caller (0: none)
--           rows of the event log to keep (0: the log is off)
-- Replies   {'ok', counter jumped 0|1, counter, user may call functions 0|1}
--           {'schema', version}: the version is unknown
--           {'counter', value}: next.event.id is no whole number below 2^53
--           {'denied', command}
-- Keeps     I5 (ids)
-- Cost      O(1)
local SCHEMA = '1'
local replication_id, highest, first_id, log = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]

local denied = rare.rights.missing()
if denied then
  return { 'denied', denied }
end
local seen = redis_call('HMGET', KEYS[1], 'schema', 'replication.id', 'event.log')
local value = redis_call('GET', P .. K.next_event_id)
local counter = ids.parse(value or '0')
if seen[1] and seen[1] ~= SCHEMA then
  return { 'schema', seen[1] }
elseif not counter then
  return { 'counter', value }
end

-- An emptied Redis has no recorded replication id to compare with, but its counter is below
-- `highest`. Each connect sets the counter. So if seriatim.meta exists, an absent counter was
-- evicted.
local changed = replication_id ~= '' and seen[2] and seen[2] ~= replication_id or counter < highest or seen[1] and not value
local chosen = first_id > 0
if changed or not seen[1] and not chosen then
  counter = rare.jump.beyond(math.max(counter, highest))
end
if chosen and counter < first_id - 1 then
  counter = first_id - 1
end
local text = ids.text(counter)
if text ~= value then
  redis_call('SET', P .. K.next_event_id, text)
end
if not seen[1] then
  redis_call('HSET', KEYS[1], 'schema', SCHEMA, 'partitions', '1')
end
if replication_id ~= '' and seen[2] ~= replication_id then
  redis_call('HSET', KEYS[1], 'replication.id', replication_id)
  -- The pass over the worker names starts again, because a cursor of HSCAN belongs to one server.
  redis_call('HDEL', KEYS[1], 'names.cursor', 'names.indexed')
end
if log ~= '0' then
  redis_call('HSET', KEYS[1], 'event.log.keep', log)
end
if log ~= '0' and not seen[3] then
  redis_call('HSET', KEYS[1], 'event.log', 'on')
elseif log == '0' and seen[3] then
  redis_call('HDEL', KEYS[1], 'event.log')
end
return { 'ok', changed and 1 or 0, text, rare.rights.may_call_functions() and 1 or 0 }
