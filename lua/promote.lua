-- promote: pushes scheduled events that are due to the queues of their objects.
--
-- Purpose   Queues due schedules in OBJ:events, in the order of their due times, and pushes one
--           marker per object. Their events get ids when a slot takes them. If a user has chosen
--           the key of a schedule, only a reference is queued, and the event stays under its key
--           until a slot takes it. Any process may call at any time: a schedule is queued only
--           once. A schedule that cannot be queued stays, and is due again after a minute.
-- Keys      KEYS[1] events.scheduled (zset, read and write)
--           OBJ:events.scheduled (hash, read and write)
--           OBJ:events, objects.with.events (lists, written)
--           events.scheduled.lateness (hash, written); event.workers.watched (zset, read)
--           events.scheduled.wake (zset, read and deleted); events.cron.next (zset, read)
--           event.groups.waiting (string, read)
-- Arguments prefix
--           schedules (1 to 256)
--           bytes of events (1 and more); the last event may exceed them
-- Replies   {'promoted', events, ms to the next due time (-1: none), markers, watched worker names,
--           ms to the next cron job (-1: none), schedules with something wrong, {member, why, …}}
--             why  what was wrong with a schedule; at most 16 of these. `wrong KEY`: the key has a
--                  wrong type, and the schedule is due again after a minute. `absent`: the hash has
--                  no event for the entry. `name`: the entry names no object of this namespace.
--                  Entries of the last two kinds are removed
--           {'denied', command}
-- Keeps     I1, I4, I7, I8. The change of a schedule directly follows the push of its event. If the
--           script fails at a later schedule, it still pushes the markers of the schedules before
-- Cost      about 10 commands; 4 per schedule, 5 if a user has chosen its key, and 2 per object.
--           At most 256 schedules, and one event more than fits into the bytes. With more than
--           MARKERS_MAX markers at most 8 schedules
local most, bytes_left = ARGV[2], tonumber(ARGV[3])
local POSTPONE_MS, WRONG_MAX = 60000, 16
-- Each schedule adds a marker, and events that are emitted now wait behind all markers. So if this
-- many markers or more wait, a call takes few schedules.
local MARKERS_MAX, FEW = 1000, 8
-- Upper bounds of lateness, in ms.
local BOUNDS = { 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 60000, 600000, 3600000 }

-- If a shared key has a wrong type, the call fails here, before anything is written.
-- Names that are grouped count like markers.
local grouped = redis_try('GET', P .. K.event_groups_waiting)
local markers = redis_call('LLEN', P .. K.objects_with_events) + (type(grouped) == 'string' and tonumber(string.match(grouped, '^%d+$')) or 0)
local names = redis_call('ZCARD', P .. K.event_workers_watched)
local now_ms, now_us = rare.time.now_ms(), rare.time.now_us()
most = math.min(tonumber(most), math.max(MARKERS_MAX - markers, FEW))
local due = redis_call('ZRANGE', KEYS[1], rare.schedules.FIRST_DUE, now_ms, 'BYSCORE', 'LIMIT', '0', most, 'WITHSCORES')
for _, command in ipairs(due[1] and { 'HDEL', 'ZREM', 'ZADD' } or {}) do
  -- Without these rights a pushed event would also stay a schedule, and would be pushed again.
  if not redis.acl_check_cmd(command, KEYS[1], '0', 'm') then
    return { 'denied', command }
  end
end

local promoted, marks, marked, late, wrong, wrong_count = 0, {}, {}, {}, {}, 0
-- By object: its key of a wrong type, or false.
local wrong_key_of = {}

-- Notes a schedule with something wrong.
local function note(member, why)
  wrong_count = wrong_count + 1
  if wrong_count <= WRONG_MAX then
    wrong[#wrong + 1], wrong[#wrong + 2] = member, why
  end
end

-- Removes an entry that leads to no event.
local function drop(member, why)
  redis_call('ZREM', KEYS[1], member)
  note(member, why)
end

-- Returns the key of a wrong type among the keys of the object, without prefix; false if there is
-- none.
local function wrong_key(object)
  for _, key in ipairs({ { K.events, 'list' }, { K.events_scheduled_of, 'hash' } }) do
    local kind = redis_call('TYPE', P .. object .. key[1]).ok
    if kind ~= key[2] and kind ~= 'none' then
      return object .. key[1]
    end
  end
  return false
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
  local object, key = rare.schedules.parse(member)
  if not object or object == '' or rare.names.is_foreign(object) then
    return drop(member, 'name')
  end
  if wrong_key_of[object] == nil then
    wrong_key_of[object] = wrong_key(object)
  end
  if wrong_key_of[object] then
    redis_call('ZADD', KEYS[1], now_ms + POSTPONE_MS, member)
    return note(member, 'wrong ' .. wrong_key_of[object])
  end
  local hash, is_chosen = P .. object .. K.events_scheduled_of, rare.schedules.is_chosen(key)
  local event, score
  if is_chosen and redis_call('HEXISTS', hash, key) == 1 then
    score, event = rare.schedules.queued(now_us, key)
  elseif not is_chosen then
    event = redis_call('HGET', hash, key)
  end
  if not event then
    return drop(member, 'absent')
  end
  -- If the newest event of the queue is a reference to the same key, the new reference replaces it.
  -- So a schedule that becomes due again and again leaves only one reference.
  local newest = score and redis_call('LINDEX', P .. object .. K.events, '0')
  local _, newest_key = rare.schedules.referred(newest or '')
  if newest_key == key then
    redis_call('LSET', P .. object .. K.events, '0', event)
  else
    redis_call('LPUSH', P .. object .. K.events, event)
  end
  if not marked[object] then
    marked[object], marks[#marks + 1] = true, object
  end
  if score then
    redis_call('ZADD', KEYS[1], score, member)
  else
    redis_call('HDEL', hash, key)
    redis_call('ZREM', KEYS[1], member)
  end
  promoted, bytes_left = promoted + 1, bytes_left - #event
  -- A schedule with the score 0 is due at once. The score is no time.
  if due_ms > 0 then
    count(now_ms - due_ms)
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
  redis_call('LPUSH', P .. K.objects_with_events, unpack(marks))
end
for bound, events in pairs(late) do
  -- A wrong type of this key is ignored, because the key is only a statistic; `check` reports it.
  redis_try('HINCRBY', P .. K.events_scheduled_lateness, bound, events)
end
-- This call has just looked for due schedules, as each wake demands. If producers have added
-- several wakes, all of them are done.
local wakes = redis_try('ZCARD', P .. K.events_scheduled_wake)
if type(wakes) == 'number' and wakes > 1 then
  redis_call('DEL', P .. K.events_scheduled_wake)
end
if failed then
  local why = type(failed) == 'table' and failed.err or failed
  return redis.error_reply(string.match(why, '^%u+ ') and why or 'ERR ' .. why)
end

-- Returns the ms until the score of the first member; -1 if there is none. `first`: the reply of
-- ZRANGE, a member and its score.
local function ms_to_first(first)
  local score = tonumber(first[2] or 'inf')
  return score == math.huge and -1 or math.max(math.ceil(score - now_ms), 0)
end

local next_ms = ms_to_first(redis_call('ZRANGE', KEYS[1], rare.schedules.FIRST_DUE, '+inf', 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES'))
-- A wrong type of this key is ignored, because schedules do not depend on cron jobs; `check`
-- reports it.
local next_cron_ms = ms_to_first(redis_try('ZRANGE', P .. K.events_cron_next, '0', '0', 'WITHSCORES'))
return { 'promoted', promoted, next_ms, markers + #marks, names, next_cron_ms, wrong_count, wrong }
