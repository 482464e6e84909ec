-- log (passing): writes the rows of finalized events, with the event log on. A call trims as many
-- rows as it has written, and at most this many more.
local TRIM_MAX = 1000
local rows, wrong = 0, nil

-- Returns why the log cannot be written; false if it can. Callers ask before their first write,
-- because each event must leave its batch with exactly one row.
local function refused()
  if wrong == nil then
    local found = redis_call('TYPE', P .. K.event_log).ok
    wrong = found ~= 'stream' and found ~= 'none' and rare.quarantine.why_of(K.event_log)
  end
  return wrong
end

-- Returns the time at which the batch was taken, ms.
local function taken_ms(slot)
  return rare.time.now_ms() - tonumber(slot.age)
end

-- Writes the row of an event. Results of its handlers, if any, are the last field.
local function row(slot, status, object, id, before, event, why, attempts)
  local taken, handled = ids.text(taken_ms(slot)), slot.handled
  if handled and handled.results and handled.id == ids.parse(id) then
    redis_call('XADD', P .. K.event_log, '*', 'status', status, 'id', id, 'prev', before, 'object', object, 'event', event, 'error', why,
      'attempts', attempts, 'taken', taken, 'results', handled.results)
  else
    redis_call('XADD', P .. K.event_log, '*', 'status', status, 'id', id, 'prev', before, 'object', object, 'event', event, 'error', why,
      'attempts', attempts, 'taken', taken)
  end
  rows = rows + 1
end

-- Writes rows for the delivered events of the batch: the first `count`, or all (nil). If a dead or
-- completed event follows, `bury` writes its row. If the log cannot be written, quarantines the
-- batch. Returns whether the log can be written.
local function delivered(slot, object, count)
  local why = refused()
  if why then
    rare.quarantine.put_batch(slot, object, why)
    return false
  elseif count == 0 then
    return true
  end
  local id, _, attempts = rare.tag.numbers(slot.tag)
  local batch = redis_call('LRANGE', slot.batch_key, count and ids.text(-count) or '0', '-1')
  local before = rare.counter.last_of(object)
  for k = #batch, 1, -1 do
    row(slot, 'completed', object, id, before, batch[k], '', ids.text(attempts))
    id, before, attempts = ids.text(ids.after(tonumber(id), 1)), id, 0
  end
  return true
end

-- Writes a row for a worker without the event log. Keeps the number of rows that the last workers
-- with the log have kept; 1,000 if seriatim.meta has no such number. Returns the reply of Redis.
local function keep_without_log(status, fields)
  local kept = redis_try('HGET', P .. K.meta, 'event.log.keep')
  local most = type(kept) == 'string' and ids.parse(kept) and kept or '1000'
  return redis_try('XADD', P .. K.event_log, 'MAXLEN', '~', most, 'LIMIT', '1000', '*', 'status', status, unpack(fields))
end

-- Trims the log. Redis deletes whole nodes of the stream, and the call limits their number, so a
-- few rows more than asked for remain.
local function trim()
  if rows > 0 then
    local limit, keep_ms = ids.text(rows + TRIM_MAX), tonumber(call.log_keep_ms)
    redis_call('XTRIM', P .. K.event_log, 'MAXLEN', '~', call.log_keep, 'LIMIT', limit)
    if keep_ms > 0 then
      redis_call('XTRIM', P .. K.event_log, 'MINID', '~', ids.text(rare.time.now_ms() - keep_ms), 'LIMIT', limit)
    end
  end
end

return { row = row, delivered = delivered, keep_without_log = keep_without_log, trim = trim }
