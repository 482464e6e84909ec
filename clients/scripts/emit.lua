#!lua
local P, redis_call, redis_try = ARGV[1], redis.call, redis.pcall
local K = { events = ':events', event_key = ':event.key', events_scheduled_of = ':events.scheduled', event_groups_waiting = 'event.groups.waiting', event_marks = 'event.marks', events_scheduled = 'events.scheduled', events_emitted = 'events.emitted', events_emitted_ends = 'events.emitted.ends' }
local PRODUCER = { data = ':data', event_end = ':event.end' }
local rare
rare = setmetatable({}, { __index = function(made, name)
local file
if name == 'time' then
file = (function()
local asked_us

local function now_us()
  if not asked_us then
    local time = redis_call('TIME')
    asked_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
  end
  return asked_us
end

local function now_ms()
  return math.floor(now_us() / 1000)
end

return { now_us = now_us, now_ms = now_ms }
end)()
elseif name == 'schedules' then
file = (function()

local SCAN_BYTES, AT_ONCE = 1048576, '1'
local QUEUED, QUEUED_MIN = -1000000000000000, -9007199254740991

local function parse(member)
  return string.match(member, '^(.*)\n([^\n]*)$')
end

local function member(object, key)
  return object .. '\n' .. key
end

local function scan(hash, cursor, count)
  local keys, bytes = {}, 0
  repeat
    local found = redis_call('HSCAN', hash, cursor, 'COUNT', AT_ONCE)
    cursor = found[1]
    for i = 1, #found[2], 2 do
      keys[#keys + 1], bytes = found[2][i], bytes + #found[2][i + 1]
    end
  until cursor == '0' or #keys >= count or bytes >= SCAN_BYTES
  return keys, cursor
end

local function is_chosen(key)
  return string.byte(key) ~= 45
end

local function queued(now_us, key)
  return string.format('%.0f', QUEUED - now_us), string.format('\0queued %.0f ', now_us) .. key
end

local function referred(text)
  return string.match(text, '^%zqueued (%d+) (.*)$')
end

local function counts(score, time_us)
  return score and tonumber(score) == QUEUED - tonumber(time_us)
end

local function due_of(score)
  local number = tonumber(score) or 0
  if number <= QUEUED and number >= QUEUED_MIN then
    return string.format('%.0f', math.floor((QUEUED - number) / 1000)), true
  end
  return score, false
end

return {
  FIRST_DUE = '(-1000000000000000', parse = parse, member = member, scan = scan, is_chosen = is_chosen, queued = queued,
  referred = referred, counts = counts, due_of = due_of,
}
end)()
elseif name == 'awaited' then
file = (function()

local SECONDS_MAX, PENDING_MS = 604800, '604800000'

local function key_of(seconds, name)
  return '?' .. seconds .. ' ' .. name
end

local function parse(key)
  return string.match(key, '^%?(%d+) (.+)$')
end

local function at(object, name)
  return P .. rare.schedules.member(object, name) .. PRODUCER.event_end
end

local function asked(text, name)
  local seconds, inbox = string.match(text, '^(%d+) (%w*)$')
  local number = tonumber(seconds)
  if number and number >= 1 and number <= SECONDS_MAX and #inbox <= 32 and name ~= '' and not string.find(name, '\n', 1, true) then
    return seconds, inbox
  end
end

local function begin(object, name, seconds, inbox, digest)
  redis_call('SET', at(object, name), '?' .. seconds .. ' ' .. inbox .. ' ' .. digest, 'PX', PENDING_MS)
end

local function pending(object, name, seconds)
  local noted, digest = string.match(redis_call('GET', at(object, name)) or '', '^%?(%d+) %w* (%x+)$')
  local key = key_of(noted or seconds, name)
  if redis_call('HGET', P .. object .. K.events_scheduled_of, key) then
    return digest or ''
  end
  local taken = redis_call('GET', P .. object .. K.event_key)
  return taken and string.match(taken, '^%d+ (.*)$') == key and (digest or '') or nil
end

local function inbox_of(value)
  return type(value) == 'string' and string.match(value, '^%?%d+ (%w+) ') or nil
end

return { asked = asked, key_of = key_of, parse = parse, at = at, begin = begin, pending = pending, inbox_of = inbox_of }
end)()
end
rawset(made, name, file)
return file
end })
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
  local grouped = redis_try('GET', P .. K.event_groups_waiting)
  markers = redis_call('LLEN', KEYS[1]) + (type(grouped) == 'string' and tonumber(string.match(grouped, '^%d+$')) or 0)
end
if markers_max > 0 and markers >= markers_max then
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
    if type(redis_try('HDEL', emitted, unpack(over))) == 'number' then
      redis_try('ZREM', ends, unpack(over))
    end
  end
end
if last < #ARGV then
  return { 'part', queued, queued_max, last - FIRST + 1 }
end
return { 'emitted', queued }
