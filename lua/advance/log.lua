-- log: with the event log on, the rows of events that are finalized.
-- Uses: again.last_of aside.put_batch aside.why_of ids.after ids.parse ids.text results.taken_ms
-- Uses: tag.numbers time.now_ms

-- Beyond what came in this call, so many rows are trimmed at most.
local TRIM_MAX = 1000
local rows, wrong = 0, nil

-- Returns why the log cannot be written, or false. Asked before anything is written: an event must
-- not leave its batch without its row, nor have two.
local function refused()
  if wrong == nil then
    local found = call('TYPE', P .. K.event_log).ok
    wrong = found ~= 'stream' and found ~= 'none' and M.aside.why_of(K.event_log)
  end
  return wrong
end

-- Writes a row. That of the event of which handlers have kept results has these, too, behind all
-- other fields.
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

-- Writes down the delivered events of the batch: all of it, or the first `count`. One that is
-- buried behind them has its row where that is done. If the log cannot be written the batch is put
-- aside; returns whether it is not.
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

-- Writes a row as a worker without the event log does. As many rows are kept as the workers with it
-- keep, or kept last; else 1,000. Returns what Redis answered.
local function keep_without_log(status, fields)
  local kept = try('HGET', P .. K.meta, 'event.log.keep')
  local most = type(kept) == 'string' and M.ids.parse(kept) and kept or '1000'
  return try('XADD', P .. K.event_log, 'MAXLEN', '~', most, 'LIMIT', '1000', '*', 'status', status, unpack(fields))
end

-- Whole nodes of the stream go, and so many at most: a little more is kept than was asked for.
local function trim()
  if rows > 0 then
    local limit = M.ids.text(rows + TRIM_MAX)
    call('XTRIM', P .. K.event_log, 'MAXLEN', '~', C.log_keep, 'LIMIT', limit)
    if C.log_keep_ms > 0 then
      call('XTRIM', P .. K.event_log, 'MINID', '~', M.ids.text(M.time.now_ms() - C.log_keep_ms), 'LIMIT', limit)
    end
  end
end

return { row = row, delivered = delivered, keep_without_log = keep_without_log, trim = trim }
