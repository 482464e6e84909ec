-- cron: an operator sets, removes, pauses or resumes a cron job, or runs it now.
--
-- Purpose   set: stores a new job, or another schedule, object or event for an existing job.
--           Setting the same job again changes nothing, so that a program may set its jobs at each
--           start. A paused job stays paused. pause: the job has no ticks until `resume`. resume:
--           the job has ticks again; the ticks that it missed do not fire later. run: queues the
--           job's event once more, even if the job is paused. Repeating any call except `run`
--           changes nothing.
-- Keys      KEYS[1] events.cron (hash, read and write)
--           events.cron.next (zset), events.cron.last (hash): read and written
--           OBJ:events, objects.with.events (lists), events.scheduled.wake (zset),
--           operator.actions (stream): written
-- Arguments prefix
--           name of the operator (at most 1,000 bytes)
--           reason for the action (at most 1,000 bytes, may be '')
--           set | remove | pause | resume | run
--           name of the job
--           of set: the job as JSON (values/cron.lua; `paused` and `since_ms` have no meaning),
--           event, next tick (ms, or `inf`), whether to run the job now as well (0|1; not if
--           nothing changes), the most jobs there may be
--           of resume: id of the paused job, a new id, next tick
-- Replies   {'set', 'new' | 'replaced' | 'same'}; {'removed'}; {'paused'}; {'resumed'}; {'ran'}
--           {'not_set'}
--           {'changed'}: only of resume: the job has another id, or is not paused
--           {'invalid'}: the stored job is invalid; it can be set and removed
--           {'too_many', number of jobs}
--           {'denied', command}
--           {'wrong_type', key, its type}
-- Keeps     I1, I9
-- Cost      about 25 commands; the job is read and written
local step, name = ARGV[4], ARGV[5]
local next_key, last_key, wake_key = P .. K.events_cron_next, P .. K.events_cron_last, P .. K.events_scheduled_wake

local no = rare.actions.refused(KEYS[1], 'hash', next_key, 'zset', last_key, 'hash', wake_key, 'zset')
if no then
  return no
end
local now = ids.text(rare.time.now_ms())
local value = redis_call('HGET', KEYS[1], name)
local job = value and rare.cron.parse(value)

-- Writes the job. All its ticks up to now count as handled.
local function write(changed, next_tick)
  redis_call('HSET', KEYS[1], name, rare.cron.text(changed))
  local _, fired = rare.cron.last_of(redis_call('HGET', last_key, name))
  redis_call('HSET', last_key, name, rare.cron.last_text(now, fired))
  if changed.paused then
    redis_call('ZREM', next_key, name)
  else
    redis_call('ZADD', next_key, next_tick, name)
    redis_call('ZADD', wake_key, '0', 'wake')
  end
end

if step == 'set' then
  local new, next_tick, runs, jobs_max = cjson.decode(ARGV[6]), ARGV[8], ARGV[9] == '1', tonumber(ARGV[10])
  new.paused, new.since_ms, new.event = job and job.paused or false, tonumber(now), ARGV[7]
  local jobs = redis_call('HLEN', KEYS[1])
  if not value and jobs >= jobs_max then
    return { 'too_many', jobs }
  end
  local has_same_ticks = job and job.schedule == new.schedule and job.zone == new.zone and job.missed == new.missed
  local is_same = has_same_ticks and job.object == new.object and job.event == new.event
  local key, found = rare.cron.wrong_queue(new.object)
  if runs and not is_same and key then
    return { 'wrong_type', key, found }
  end
  if not is_same and has_same_ticks and not job.paused then
    -- Only the object or the event has changed, so ticks that are due stay due.
    new.since_ms = job.since_ms
    redis_call('HSET', KEYS[1], name, rare.cron.text(new))
  elseif not is_same then
    write(new, next_tick)
  end
  if not is_same then
    rare.actions.note('cron-set', new.object, '', 'cron', name)
  end
  if runs and not is_same then
    redis_call('HSET', last_key, name, rare.cron.last_text(rare.cron.last_of(redis_call('HGET', last_key, name)), now))
    rare.cron.push(new, 1)
    rare.actions.note('cron-run', new.object, '', 'cron', name)
  end
  return { 'set', not value and 'new' or is_same and 'same' or 'replaced' }
elseif not value then
  return { 'not_set' }
elseif step == 'remove' then
  redis_call('HDEL', KEYS[1], name)
  redis_call('HDEL', last_key, name)
  redis_call('ZREM', next_key, name)
  rare.actions.note('cron-remove', job and job.object or '', '', 'cron', name)
  return { 'removed' }
elseif not job then
  return { 'invalid' }
elseif step == 'pause' then
  if not job.paused then
    job.paused = true
    write(job)
    rare.actions.note('cron-pause', job.object, '', 'cron', name)
  end
  return { 'paused' }
elseif step == 'resume' then
  if job.id ~= ARGV[6] or not job.paused then
    return { 'changed' }
  end
  job.id, job.paused = ARGV[7], false
  write(job, ARGV[8])
  rare.actions.note('cron-resume', job.object, '', 'cron', name)
  return { 'resumed' }
end
local key, found = rare.cron.wrong_queue(job.object)
if key then
  return { 'wrong_type', key, found }
elseif rare.names.is_foreign(job.object) then
  return { 'invalid' }
end
redis_call('HSET', last_key, name, rare.cron.last_text(rare.cron.last_of(redis_call('HGET', last_key, name)), now))
rare.cron.push(job, 1)
rare.actions.note('cron-run', job.object, '', 'cron', name)
return { 'ran' }
