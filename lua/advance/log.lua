-- log: writes the rows of finalized events, with the event log on.
-- Uses: again.last_of aside.put_batch aside.why_of ids.after ids.parse ids.text results.taken_ms
-- Uses: tag.numbers time.now_ms
local LOG_KEEP, LOG_KEEP_MS = ARGV[15], tonumber(ARGV[16])

-- A call trims as many rows as it has written, and at most this many more.
local TRIM_MAX = 1000
local rows, wrong = 0, nil

-- Returns why the log cannot be written; false if it can. Callers ask before their first write,
-- because each event must leave its batch with exactly one row.
local function refused()
  if wrong == nil then
    local found = call('TYPE', P .. K.event_log).ok
    wrong = found ~= 'stream' and found ~= 'none' and M.aside.why_of(K.event_log)
  end
  return wrong
end

-- Writes the row of an event. Results of its handlers, if any, are the last field.
local function row(i, status, object, id, before, event, why, attempts)
  local taken, handled = M.ids.text(M.results.taken_ms(i)), C.handled[C.number[i]]
  if handled and handled.results and handled.id == M.ids.parse(id) then
    call('XADD', P .. K.event_log, '*', 'status', status, 'id', id, 'prev', before, 'object', object, 'event', event, 'error', why,
      'attempts', attempts, 'taken', taken, 'results', handled.results)
  else
    call('XADD', P .. K.event_log, '*', 'status', status, 'id', id, 'prev', before, 'object', object, 'event', event, 'error', why,
      'attempts', attempts, 'taken', taken)
  end
  rows = rows + 1
end

-- Writes rows for the delivered events of the batch: the first `count`, or all (nil). If a dead or
-- completed event follows, `bury` writes its row. If the log cannot be written, puts the batch
-- aside. Returns whether the log can be written.
local function delivered(i, object, count)
  local why = refused()
  if why then
    M.aside.put_batch(i, object, why)
    return false
  elseif count == 0 then
    return true
  end
  local id, _, attempts = M.tag.numbers(ARGV[C.arg[i] + 1])
  local batch = call('LRANGE', C.base[i] .. K.worker_event, count and M.ids.text(-count) or '0', '-1')
  local before = M.again.last_of(object)
  for k = #batch, 1, -1 do
    row(i, 'completed', object, id, before, batch[k], '', M.ids.text(attempts))
    id, before, attempts = M.ids.text(M.ids.after(tonumber(id), 1)), id, 0
  end
  return true
end

-- Writes a row for a worker without the event log. Keeps the number of rows that the last workers
-- with the log have kept; 1,000 if seriatim.meta has no such number. Returns the reply of Redis.
local function keep_without_log(status, fields)
  local kept = try('HGET', P .. K.meta, 'event.log.keep')
  local most = type(kept) == 'string' and M.ids.parse(kept) and kept or '1000'
  return try('XADD', P .. K.event_log, 'MAXLEN', '~', most, 'LIMIT', '1000', '*', 'status', status, unpack(fields))
end

-- Trims the log. Redis deletes whole nodes of the stream, and the call limits their number, so a
-- few rows more than asked for remain.
local function trim()
  if rows > 0 then
    local limit = M.ids.text(rows + TRIM_MAX)
    call('XTRIM', P .. K.event_log, 'MAXLEN', '~', LOG_KEEP, 'LIMIT', limit)
    if LOG_KEEP_MS > 0 then
      call('XTRIM', P .. K.event_log, 'MINID', '~', M.ids.text(M.time.now_ms() - LOG_KEEP_MS), 'LIMIT', limit)
    end
  end
end

return { row = row, delivered = delivered, keep_without_log = keep_without_log, trim = trim }
