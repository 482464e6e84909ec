-- connect: the first script on every new connection of a worker process.
--
-- Purpose   Makes sure that no id is ever given twice, even if Redis has lost writes (failover,
--           restart, eviction, an emptied server). The counter jumps to the time in microseconds if
--           the server's replication id changed, if the counter is absent, or if it is below the
--           highest id the caller has seen. A namespace without seriatim.meta is new, or was
--           emptied: its counter begins at the time, too, unless the caller chose a first id. As
--           long as fewer than a million ids a second are given, the time is beyond every id given
--           before, also if Redis has lost an earlier jump and nobody remembers those ids. Writes
--           down whether the event log is on, for those who finalize events and are no workers, and
--           how many rows of it are kept: a worker without the log must not trim rows that workers
--           with it have written. Raises the version of the protocol, so that workers of the
--           version before cannot connect any more, and refuses a version it does not know, before
--           anything is written. Refuses a user who may not do all that the scripts do.
-- Keys      KEYS[1] seriatim.meta (hash, read and write); next.event.id (string, read and write)
-- Arguments prefix; replication id ('' = unknown); highest id seen by the caller (0 = none); lowest
--           first id, of the caller's choice (0 = none); rows of the event log that are kept, or 0
--           if it is off
-- Replies   {'ok', counter jumped 0|1, counter} | {'schema', version} | {'counter', value}:
--           next.event.id is no whole number below 2^53
--           | {'denied', command}
-- Keeps     I5 (ids)
-- Cost      O(1)
-- Uses: ids.parse jump.beyond rights.missing
local SCHEMA, SCHEMA_BEFORE = '2', '1'
local replication_id, highest, first_id, log = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]

local denied = M.rights.missing()
if denied then
  return { 'denied', denied }
end
local seen = call('HMGET', KEYS[1], 'schema', 'replication.id', 'event.log')
local value = call('GET', P .. K.next_event_id)
local counter = M.ids.parse(value or '0')
local is_known = not seen[1] or seen[1] == SCHEMA or seen[1] == SCHEMA_BEFORE
if not is_known then
  return { 'schema', seen[1] }
elseif not counter then
  return { 'counter', value }
end

-- An emptied Redis has no replication id to compare with, but its counter tells. An absent counter
-- was evicted: connect always sets it.
local changed = replication_id ~= '' and seen[2] and seen[2] ~= replication_id or counter < highest or seen[1] and not value
local chosen = first_id > 0
if changed or not seen[1] and not chosen then
  counter = M.jump.beyond(math.max(counter, highest))
end
if chosen and counter < first_id - 1 then
  counter = first_id - 1
end
local text = string.format('%.0f', counter)
if text ~= value then
  call('SET', P .. K.next_event_id, text)
end
if seen[1] ~= SCHEMA then
  call('HSET', KEYS[1], 'schema', SCHEMA, 'partitions', '1')
end
if replication_id ~= '' and seen[2] ~= replication_id then
  call('HSET', KEYS[1], 'replication.id', replication_id)
  -- A cursor of HSCAN means nothing to another server: the pass over the worker names begins anew.
  call('HDEL', KEYS[1], 'names.cursor', 'names.indexed')
end
if log ~= '0' then
  call('HSET', KEYS[1], 'event.log.keep', log)
end
if log ~= '0' and not seen[3] then
  call('HSET', KEYS[1], 'event.log', 'on')
elseif log == '0' and seen[3] then
  call('HDEL', KEYS[1], 'event.log')
end
return { 'ok', changed and 1 or 0, text }
