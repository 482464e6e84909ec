-- promote: pushes scheduled events that are due to the queues of their objects.
--
-- Purpose   Moves due schedules to OBJ:events, in the order of their due times, and pushes one
--           marker per object. From then on they are events like all others, and get their ids when
--           they are claimed. Any process may call at any time: a schedule is in one place.
--           A schedule that cannot be pushed stays, and is due again after a minute.
-- Keys      KEYS[1] events.scheduled (zset, read and write)
--           OBJ:events.scheduled (hash, read and write)
--           OBJ:events, objects.with.events (lists, written)
--           events.scheduled.lateness (hash, written); event.workers.watched (zset, read)
-- Arguments prefix
--           schedules (1 to 256)
--           bytes of events (1 and more); the last event may exceed them
-- Replies   {'promoted', events, ms to the next due time (-1: none), markers, watched worker names,
--           {member, why, …}}
--             why  what was wrong with a schedule: `WRONGTYPE …`: it is due again after a minute;
--                  `absent`: the hash has no event for the entry; `name`: the entry names no object of
--                  this namespace. Entries of the last two kinds are removed
-- Keeps     I1, I4, I7, I8. The push and the removal of one schedule are neighbours. Should the
--           script fail between two schedules, it still pushes the markers
-- Cost      about 8 commands; 4 per schedule; at most 256 schedules, and one event more than fits
--           into the bytes
-- Uses: names.is_foreign schedule.parse time.now_ms
local most, bytes_left = ARGV[2], tonumber(ARGV[3])
local POSTPONE_MS = 60000
-- Upper bounds of lateness, in ms.
local BOUNDS = { 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 60000, 600000, 3600000 }

-- A shared key of a wrong type fails here, before anything is written.
local markers = call('LLEN', P .. K.objects_with_events)
local lateness = P .. K.events_scheduled_lateness
call('HLEN', lateness)
local names = call('ZCARD', P .. K.event_workers_watched)
local now_ms = M.time.now_ms()
local due = call('ZRANGE', KEYS[1], '-inf', now_ms, 'BYSCORE', 'LIMIT', '0', most, 'WITHSCORES')

local promoted, marks, marked, late, wrong = 0, {}, {}, {}, {}

-- Removes an entry that leads to no event.
local function drop(member, why)
  call('ZREM', KEYS[1], member)
  wrong[#wrong + 1], wrong[#wrong + 2] = member, why
end

-- Counts a promoted event by its lateness.
local function count(late_ms)
  local bound = 'inf'
  for _, ms in ipairs(BOUNDS) do
    if late_ms <= ms then
      bound = string.format('%d', ms)
      break
    end
  end
  late[bound] = (late[bound] or 0) + 1
end

-- Promotes one schedule.
local function promote(member, due_ms)
  local object, key = M.schedule.parse(member)
  if not object or object == '' or M.names.is_foreign(object) then
    return drop(member, 'name')
  end
  local hash = P .. object .. K.events_scheduled_of
  local event = try('HGET', hash, key)
  if not event then
    return drop(member, 'absent')
  end
  local refused = type(event) == 'table' and event or nil
  if not refused then
    local pushed = try('LPUSH', P .. object .. K.events, event)
    refused = type(pushed) == 'table' and pushed or nil
  end
  if not refused then
    call('HDEL', hash, key)
    call('ZREM', KEYS[1], member)
    if not marked[object] then
      marked[object], marks[#marks + 1] = true, object
    end
    promoted, bytes_left = promoted + 1, bytes_left - #event
    count(now_ms - due_ms)
  elseif string.find(refused.err, '^WRONGTYPE') then
    call('ZADD', KEYS[1], now_ms + POSTPONE_MS, member)
    wrong[#wrong + 1], wrong[#wrong + 2] = member, refused.err
  else
    error(refused)
  end
end

local failed
for i = 1, #due, 2 do
  if bytes_left <= 0 or failed then
    break
  end
  local done, why = pcall(promote, due[i], tonumber(due[i + 1]))
  failed = not done and why
end
if marks[1] then
  call('LPUSH', P .. K.objects_with_events, unpack(marks))
end
for bound, events in pairs(late) do
  call('HINCRBY', lateness, bound, events)
end
if failed then
  local why = type(failed) == 'table' and failed.err or failed
  return redis.error_reply(string.match(why, '^%u+ ') and why or 'ERR ' .. why)
end
local first = call('ZRANGE', KEYS[1], '0', '0', 'WITHSCORES')
local next_ms = first[2] and tonumber(first[2]) or math.huge
next_ms = next_ms == math.huge and -1 or math.max(math.ceil(next_ms - now_ms), 0)
return { 'promoted', promoted, next_ms, markers + #marks, names, wrong }
