-- cron: the values of events.cron and events.cron.last.
--
-- A job:  JSON, a line feed, and the event. The JSON has `id`, which changes with every change of
--          the job, `paused`, `since_ms`, `object`, and `schedule`, `zone` and `missed`, which only
--          Rust reads
-- Last:   `HANDLED_MS FIRED_MS`: ticks up to HANDLED_MS have fired or were skipped; the job fired
--         last at FIRED_MS (0: never)

-- Parses a job; nil if it is invalid. The job has two more fields: `event`, and `json`, its JSON.
local function parse(value)
  local json, event_at = string.match(value, '^([^\n]*)\n()')
  -- If the text is no JSON, `job` is the error, a text.
  local _, job = pcall(cjson.decode, json)
  if type(job) ~= 'table' or type(job.id) ~= 'string' or type(job.paused) ~= 'boolean' or type(job.object) ~= 'string' then
    return nil
  end
  local since_ms = type(job.since_ms) == 'number' and job.since_ms or -1
  if since_ms < 0 or since_ms > ids.MAX or since_ms % 1 ~= 0 then
    return nil
  end
  job.json, job.event = json, string.sub(value, event_at)
  return job
end

-- The JSON of a job. A number that cjson prints has only 14 digits.
local FORM = '{"id":%s,"paused":%s,"since_ms":%.0f,"object":%s,"schedule":%s,"zone":%s,"missed":%s}\n'

-- Returns the value of a job.
local function text(job)
  local encode = cjson.encode
  local schedule, zone, missed = encode(job.schedule), encode(job.zone), encode(job.missed)
  return string.format(FORM, encode(job.id), encode(job.paused), job.since_ms, encode(job.object), schedule, zone, missed) .. job.event
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
