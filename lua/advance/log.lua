-- log: with the event log on, what is finalized is written there, in the step that finalizes it.
-- Beyond what came in this call, so many rows are trimmed at most.
local LOG_TRIM_MAX = 1000

-- How many rows are kept, about, and for how long (ms; 0: however old).
local log_keep, log_keep_ms = args[SLOT_ARGS + 1], tonumber(args[SLOT_ARGS + 2])
local log_rows, log_wrong = 0, nil

-- Answers why the log cannot be written, or false. Asked before anything is written: an event must not leave its batch without its row, nor have two.
local function log_refused()
  if log_wrong == nil then
    local found = call('TYPE', P .. event_log).ok
    log_wrong = found ~= 'stream' and found ~= 'none' and hold().quarantined_by(event_log)
  end
  return log_wrong
end

-- The row of the event of which handlers have kept results has these, too: `results`, behind all other fields.
local function log_row(slot, status, object, id, prev, event, why, attempts)
  local handled = slot.handled
  if handled and handled.results and handled.id == id_of(id) then
    call('XADD', P .. event_log, '*', 'status', status, 'id', id, 'prev', prev, 'object', object, 'event', event, 'error', why,
      'attempts', attempts, 'taken', slot.taken, 'results', handled.results)
  else
    call('XADD', P .. event_log, '*', 'status', status, 'id', id, 'prev', prev, 'object', object, 'event', event, 'error', why,
      'attempts', attempts, 'taken', slot.taken)
  end
  log_rows = log_rows + 1
end

-- Writes down the delivered events of the batch, all of it or the first `count`. One that is buried behind them has its row where that is done.
local function log_delivered(slot, object, count)
  local id, _, attempts = numbers(args[slot.arg + 1])
  local batch, prev = call('LRANGE', slot.batch, count and text_of(-count) or '0', '-1'), again().last_of(object)
  for i = #batch, 1, -1 do
    log_row(slot, 'completed', object, id, prev, batch[i], '', text_of(attempts))
    id, prev, attempts = text_of(tonumber(id) + 1), id, 0
  end
end

-- Logs what the result of a slot finalizes. Where the log cannot be written the batch is held, until an operator releases it: answers whether it is not.
local function log_result(slot, object)
  local all = slot.result == 'done' or slot.result == 'yield'
  local buries = slot.result == 'reject' or slot.result == 'complete'
  local count = not all and tonumber(args[slot.arg + 3])
  if not all and not buries and count == 0 then
    return true
  end
  local why = log_refused()
  if why then
    hold().back(slot, object, why)
    return false
  elseif count ~= 0 then
    log_delivered(slot, object, count)
  end
  return true
end

-- Whole nodes of the stream go, and so many at most: a little more is kept than was asked for.
local function trim_log()
  if log_rows > 0 then
    local limit = text_of(log_rows + LOG_TRIM_MAX)
    call('XTRIM', P .. event_log, 'MAXLEN', '~', log_keep, 'LIMIT', limit)
    if log_keep_ms > 0 then
      call('XTRIM', P .. event_log, 'MINID', '~', text_of(now_ms - log_keep_ms), 'LIMIT', limit)
    end
  end
end

return { row = log_row, result = log_result, trim = trim_log }
