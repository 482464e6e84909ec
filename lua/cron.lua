-- cron: fires ticks of cron jobs, and returns the jobs that are due.
--
-- Purpose   The caller computes the ticks of the jobs that an earlier call has returned. This call
--           queues the events of these ticks, but only if the job has not changed since, and if no
--           other process has handled ticks of the job meanwhile. So if many processes call, only
--           one of them fires a tick. A repeated call changes nothing. A job that cannot fire is
--           due again after a minute; its ticks are not lost. If the clock is further from the time
--           that a sweep noted last (values/clock.lua) than sweeps are apart, the call does nothing.
--           The next sweep notes whether the clock has stepped. So no tick fires in a glitch of the
--           clock that no sweep knows of.
-- Keys      KEYS[1] events.cron.next (zset, read and write)
--           events.cron (hash, read); events.cron.last (hash, read and write)
--           OBJ:events, objects.with.events (lists, written); seriatim.meta (hash, read)
-- Arguments prefix
--           jobs to return (1 to 64)
--           then for each job to fire:
--             name; id; the time up to which its ticks are handled, as the earlier reply had it;
--             that time after this call; its next tick (ms, or `inf`); how often its event is
--             queued (0 to 1,000), or `-1`: only postpone the job for a minute
-- Replies   {'cron', ms since 1970, ms to the next due job (-1: none), jobs fired, events queued,
--           {name, why, …}, job…}
--             name, why  a job that could not fire: `wrong KEY`, the key has a wrong type; `denied
--                        …`, a right is missing; `name`, its object belongs to another
--                        namespace; `value`, the job is invalid.
--                        `absent`: the entry has no job, and is removed
--             job        {name, id, JSON, bytes of the event, handled ms}: a due job
--           {'denied', command}
-- Keeps     I1, I9
-- Cost      about 5 commands; 7 per job to fire, 3 per job returned. Reads at most 1 MiB of jobs,
--           and one more. The caller bounds the bytes of the events that are queued
local POSTPONE_MS, FIRST, EACH = 60000, 3, 6
-- The longest time between two sweeps, with a margin, and the time until the next look.
local NOTED_MS, AGAIN_MS = 65000, 1000
-- The bytes of jobs after which no further one is read.
local BYTES_MAX = 1048576
local jobs_key, last_key = P .. K.events_cron, P .. K.events_cron_last
local now_ms = rare.time.now_ms()

local noted_ms = ids.parse(redis_call('HGET', P .. K.meta, 'clock') or '')
if noted_ms and math.abs(now_ms - noted_ms) > NOTED_MS then
  return { 'cron', ids.text(now_ms), AGAIN_MS, 0, 0, {} }
end

-- If a shared key has a wrong type, the call fails here, before anything is written.
redis_call('LLEN', P .. K.objects_with_events)
redis_call('ZCARD', KEYS[1])
redis_call('HLEN', jobs_key)
redis_call('HLEN', last_key)
local written = { { 'HSET', last_key }, { 'ZADD', KEYS[1] }, { 'LPUSH', P .. K.objects_with_events } }
for _, pair in ipairs(ARGV[FIRST] and written or {}) do
  -- If one of these rights is missing, the call is refused: it could lose a tick, or its job would
  -- stay due.
  if not redis.acl_check_cmd(pair[1], pair[2], '1', 'm') then
    return { 'denied', pair[1] }
  end
end
local wrong, fired, queued = {}, 0, 0

-- Postpones a job for a minute. If `why` is given, the reply reports the job with this reason.
local function postpone(name, why)
  redis_call('ZADD', KEYS[1], 'XX', now_ms + POSTPONE_MS, name)
  if why then
    wrong[#wrong + 1], wrong[#wrong + 2] = name, why
  end
end

-- Fires the ticks of one job.
local function fire(name, id, handled, handled_after, next_tick, count)
  local value = redis_call('HGET', jobs_key, name)
  local job = value and rare.cron.parse(value)
  local found, before = rare.cron.last_of(redis_call('HGET', last_key, name))
  if not job or job.id ~= id or job.paused or tonumber(found) ~= tonumber(handled) then
    return
  elseif count < 0 then
    return postpone(name)
  end
  local key = rare.cron.wrong_queue(job.object)
  if count > 0 and (key or rare.names.is_foreign(job.object)) then
    return postpone(name, key and 'wrong ' .. key or 'name')
  elseif count > 0 and not redis.acl_check_cmd('LPUSH', P .. job.object .. K.events, 'v') then
    return postpone(name, 'denied LPUSH ' .. job.object .. K.events)
  end
  -- Marks the tick as handled before the push. If the script failed after the push, the next call
  -- would queue the event again.
  redis_call('HSET', last_key, name, rare.cron.last_text(handled_after, count > 0 and ids.text(now_ms) or before))
  redis_call('ZADD', KEYS[1], next_tick, name)
  if count > 0 then
    rare.cron.push(job, count)
    fired, queued = fired + 1, queued + count
  end
end

for at = FIRST, #ARGV, EACH do
  fire(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], tonumber(ARGV[at + 5]))
end

local jobs, bytes = {}, 0
for _, name in ipairs(redis_call('ZRANGE', KEYS[1], '-inf', now_ms, 'BYSCORE', 'LIMIT', '0', ARGV[2])) do
  if bytes >= BYTES_MAX then
    break
  end
  local value = redis_call('HGET', jobs_key, name)
  local job = value and rare.cron.parse(value)
  local handled = ids.parse((rare.cron.last_of(redis_call('HGET', last_key, name))))
  handled = handled and ids.text(handled)
  if not value then
    redis_call('ZREM', KEYS[1], name)
    wrong[#wrong + 1], wrong[#wrong + 2] = name, 'absent'
  elseif job and job.paused then
    -- A paused job has no ticks.
    redis_call('ZREM', KEYS[1], name)
  elseif not job or not handled then
    postpone(name, 'value')
  else
    bytes = bytes + #value
    jobs[#jobs + 1] = { name, job.id, job.json, #job.event, handled }
  end
end
local first = redis_call('ZRANGE', KEYS[1], '0', '0', 'WITHSCORES')
local next_ms = tonumber(first[2] or 'inf')
next_ms = next_ms == math.huge and -1 or math.max(math.ceil(next_ms - now_ms), 0)
return { 'cron', ids.text(now_ms), next_ms, fired, queued, wrong, unpack(jobs) }
