-- cron: the values of events.cron and events.cron.last.
--
-- A job:  `ID PAUSED SINCE_MS OBJECT_BYTES PLAN_BYTES OBJECT PLAN EVENT`, without blanks between
--          the last three texts. ID changes with every change of the job. PLAN is JSON with the
--          schedule; only Rust reads it.
-- Last:   `HANDLED_MS FIRED_MS`: ticks up to HANDLED_MS have fired or were skipped; the job fired
--         last at FIRED_MS (0: never)

-- Parses a job; nil if it is invalid.
local function parse(value)
  local id, paused, since, object_bytes, plan_bytes, at = string.match(value, '^(%S+) ([01]) (%d+) (%d+) (%d+) ()')
  local plan_at = at and at + object_bytes
  local event_at = at and plan_at + plan_bytes
  if not at or event_at > #value + 1 then
    return nil
  end
  return {
    id = id, is_paused = paused == '1', since = since, object = string.sub(value, at, plan_at - 1),
    plan = string.sub(value, plan_at, event_at - 1), event = string.sub(value, event_at),
  }
end

-- Returns the value of a job.
local function text(job)
  local numbers = string.format('%s %d %s %d %d ', job.id, job.is_paused and 1 or 0, job.since, #job.object, #job.plan)
  return numbers .. job.object .. job.plan .. job.event
end

-- Returns HANDLED_MS and FIRED_MS of a value of events.cron.last, as texts; '0' if the value is
-- absent or invalid.
local function last_of(value)
  local handled, fired = string.match(value or '', '^(%d+) (%d+)$')
  return handled or '0', fired or '0'
end

-- Returns the value of events.cron.last for these two times.
local function last_text(handled, fired)
  return handled .. ' ' .. fired
end

-- If the queue of the object has a wrong type, returns the key of the queue without prefix, and
-- that type.
local function wrong_queue(object)
  local found = redis_call('TYPE', P .. object .. K.events).ok
  if found ~= 'list' and found ~= 'none' then
    return object .. K.events, found
  end
end

-- Queues the job's event `count` times, with one marker.
local function push(job, count)
  local events = {}
  for n = 1, count do
    events[n] = job.event
  end
  redis_call('LPUSH', P .. job.object .. K.events, unpack(events))
  redis_call('LPUSH', P .. K.objects_with_events, job.object)
end

return { parse = parse, text = text, last_of = last_of, last_text = last_text, wrong_queue = wrong_queue, push = push }
