-- emit: queues events of an object, at most once per key, and within limits.
--
-- Purpose   Queues an emit that has an idempotency key, or whose object has limits. All other emits
--           are plain transactions. If an emit with a key is repeated within the window, the call
--           changes nothing. The end of an awaited emit is kept for its producer (values/awaited.lua).
-- Keys      KEYS[1] objects.with.events (list, read and written)
--           OBJ:events (list, read and written); OBJ:data (string, written)
--           event.groups.waiting (string, read), only with a limit of markers; event.marks (zset,
--           read), only at this limit
--           events.emitted (hash), events.emitted.ends (zset): read and written, with a key
--           OBJ:events.scheduled (hash), events.scheduled (zset), the end of the event (string):
--           read and written; OBJ:event.key (string): read; if the emit is awaited
-- Arguments prefix
--           object
--           idempotency key ('': none)
--           window in ms: how long the key is kept
--           most events queued for the object (0: any number)
--           most markers (0: any number)
--           two arguments: `data` and the object's state; `none` and ''; `part` and ''; or `await`
--           and `SECONDS INBOX`, the time for which the end of the event is kept, and where it is
--           told (may be ''). With `part` each event is an emit of its own, and the call queues as
--           many as fit. With `await` there is a key and one event
--           events, the main event first (1 and more)
-- Replies   {'emitted', events queued}
--           {'part', events queued, limit, events of this call among them}: the other events of
--           this call did not fit
--           {'repeated', events queued}: the emit with this key was done before
--           {'differs'}: the object's key was used for other events or data
--           {'full', 'queued' | 'markers', number now, limit}
--           {'denied', command}
--           {'wrong_type', key, its type}
--           A call with any reply but `emitted` and `part` has changed nothing
-- Keeps     I1, I7
-- Cost      about 6 commands, with a key 10 more, and 9 more if it is awaited. With a key it hashes
--           the events, and removes at most 8 keys whose window is over. The caller bounds the bytes
local object, key, window_ms = ARGV[2], ARGV[3], tonumber(ARGV[4])
local queued_max, markers_max, has_data, data = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == 'data', ARGV[8]
local FIRST, EXPIRED_MAX, EVENTS_PER_PUSH = 9, 8, 1000
local seconds, inbox
if ARGV[7] == 'await' then
  seconds, inbox = rare.awaited.asked(data, key)
  if not seconds or #ARGV ~= FIRST then
    return redis.error_reply('ERR an awaited emit has a key without a line feed, SECONDS from 1 to 604800, an INBOX of up to 32 letters and digits, and one event')
  end
end
local queue, emitted, ends = P .. object .. K.events, P .. K.events_emitted, P .. K.events_emitted_ends

-- Checks types and rights before the first write, because Redis does not undo a script that fails
-- halfway.
local types = { queue, 'list', KEYS[1], 'list' }
local rights = { 'LPUSH', queue, 'LPUSH', KEYS[1] }
if key ~= '' then
  types[5], types[6], types[7], types[8] = emitted, 'hash', ends, 'zset'
  rights[5], rights[6], rights[7], rights[8] = 'HSET', emitted, 'ZADD', ends
end
if has_data then
  rights[#rights + 1], rights[#rights + 2] = 'SET', P .. object .. PRODUCER.data
end
local waiting, index = P .. object .. K.events_scheduled_of, P .. K.events_scheduled
if seconds then
  for i, of in ipairs({ waiting, 'hash', index, 'zset', rare.awaited.at(object, key), 'string', P .. object .. K.event_key, 'string' }) do
    types[8 + i] = of
  end
  for i, of in ipairs({ 'HSET', waiting, 'ZADD', index, 'SET', rare.awaited.at(object, key) }) do
    rights[8 + i] = of
  end
end
for i = 1, #types, 2 do
  local found = redis_call('TYPE', types[i]).ok
  if found ~= types[i + 1] and found ~= 'none' then
    return { 'wrong_type', types[i], found }
  end
end
for i = 1, #rights, 2 do
  if not redis.acl_check_cmd(rights[i], rights[i + 1], '0', 'v') then
    return { 'denied', rights[i] }
  end
end

local queued, count = redis_call('LLEN', queue), #ARGV - FIRST + 1
local member, digest, now_ms
if key ~= '' then
  now_ms, member = rare.time.now_ms(), rare.schedules.member(object, key)
  -- Hashes each event alone, because joining the events would copy them once more.
  local parts = { has_data and redis.sha1hex(data) or 'none' }
  for i = FIRST, #ARGV do
    parts[#parts + 1] = redis.sha1hex(ARGV[i])
  end
  digest = redis.sha1hex(table.concat(parts))
  local found, ends_ms = redis_call('HGET', emitted, member), redis_call('ZSCORE', ends, member)
  if found and ends_ms and tonumber(ends_ms) > now_ms then
    return found == digest and { 'repeated', queued } or { 'differs' }
  end
  local pending = seconds and rare.awaited.pending(object, key, seconds)
  if pending then
    -- The window is over, but the event has not ended.
    return pending == digest and { 'repeated', queued } or { 'differs' }
  end
end
local last = #ARGV
if queued_max > 0 and queued + count > queued_max then
  last = ARGV[7] == 'part' and last - (queued + count - queued_max) or 0
end
if last < FIRST then
  return { 'full', 'queued', queued, queued_max }
end
local markers = 0
if markers_max > 0 then
  -- Names that are grouped count like markers, unless the user may not read their
  -- number.
  local grouped = redis_try('GET', P .. K.event_groups_waiting)
  markers = redis_call('LLEN', KEYS[1]) + (type(grouped) == 'string' and tonumber(string.match(grouped, '^%d+$')) or 0)
end
if markers_max > 0 and markers >= markers_max then
  -- Marks do not count towards the limit. If the user may not read event.marks, they do count.
  local marks = redis_try('ZCARD', P .. K.event_marks)
  markers = markers - (type(marks) == 'number' and marks or 0)
end
if markers_max > 0 and markers >= markers_max then
  return { 'full', 'markers', markers, markers_max }
end

if has_data then
  redis_call('SET', P .. object .. PRODUCER.data, data)
end
if seconds then
  -- A reference is queued. The event stays under its key until a slot takes it.
  local awaited = rare.awaited.key_of(seconds, key)
  local score, reference = rare.schedules.queued(rare.time.now_us(), awaited)
  rare.awaited.begin(object, key, seconds, inbox, digest)
  redis_call('HSET', waiting, awaited, ARGV[FIRST])
  redis_call('ZADD', index, score, rare.schedules.member(object, awaited))
  ARGV[FIRST] = reference
end
for i = FIRST, last, EVENTS_PER_PUSH do
  queued = redis_call('LPUSH', queue, unpack(ARGV, i, math.min(i + EVENTS_PER_PUSH - 1, last)))
end
redis_call('LPUSH', KEYS[1], object)
if key ~= '' then
  redis_call('HSET', emitted, member, digest)
  redis_call('ZADD', ends, now_ms + window_ms, member)
  local over = redis_call('ZRANGE', ends, '-inf', now_ms, 'BYSCORE', 'LIMIT', '0', EXPIRED_MAX)
  if over[1] then
    -- This only frees memory. If the user lacks one of the rights, expired keys stay.
    if type(redis_try('HDEL', emitted, unpack(over))) == 'number' then
      redis_try('ZREM', ends, unpack(over))
    end
  end
end
if last < #ARGV then
  return { 'part', queued, queued_max, last - FIRST + 1 }
end
return { 'emitted', queued }
