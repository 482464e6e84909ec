-- partly: results that say what became of each piece of a batch: some events delivered, one buried, the rest kept or held.

-- Rows of the log that a worker without the event log keeps: as many as the workers that have it on, or had it on last; else 1,000.
local function rows_kept()
  -- The key is spelled out: the layer is at its limit of names from outside.
  local kept = try('HGET', P .. 'seriatim.meta', 'event.log.keep')
  return type(kept) == 'string' and id_of(kept) and kept or '1000'
end

-- Writes the event behind the first `count` of the batch to the dead letters, or to the log where it is completed with errors. Answers the error
-- where that cannot be done.
local function bury(slot, object, prev, count, id, why, attempts)
  local event = call('LINDEX', slot.batch, -1 - count)
  local fields = { 'id', id, 'prev', prev, 'object', object, 'event', event, 'error', why, 'attempts', attempts }
  local status, kept = 'dead', nil
  if slot.result == 'complete' then
    status = 'completed_with_errors'
    kept = not log_on and try('XADD', P .. event_log, 'MAXLEN', '~', rows_kept(), 'LIMIT', '1000', '*', 'status', status, unpack(fields))
  else
    kept = try('XADD', P .. events_dead, '*', unpack(fields))
  end
  local failed = type(kept) == 'table' and kept.err or nil
  if log_on and not failed then
    log().row(slot, status, object, id, prev, event, why, attempts)
  end
  return failed
end

-- The id before the first event that remains.
local function prev_of(object, last)
  return last ~= '' and last or again().last_of(object)
end

-- A part of the batch is delivered. Answers whether the slot goes on with its object because nothing of the batch remains.
local function commit_part(slot, object, last)
  local result, count, rest = slot.result, tonumber(args[slot.arg + 3]), args[slot.arg + 4]
  local tag, held_id, error_kept = args[slot.arg + 1], args[slot.arg + 5], nil
  -- The last event that is over.
  local over = id_of(last) or 0
  if result == 'reject' or result == 'complete' then
    local id, why = args[slot.arg + 5], args[slot.arg + 6]
    local failed = bury(slot, object, prev_of(object, last), count, id, why, args[slot.arg + 7])
    if failed then
      -- The event stays where it is, held, rather than be lost. Its hand-outs are kept: no tag may come twice.
      local _, handouts, _, crashes = numbers(tag)
      local held_why = format('quarantine: %s: %s', result == 'complete' and event_log or events_dead, failed)
      result, rest, held_id = 'hold', 'inf', held_id_of(id, handouts, tonumber(args[slot.arg + 7]), crashes, held_why)
      error_kept = why
    else
      count, over = count + 1, id_of(id)
    end
  end
  if count > 0 then
    call('LTRIM', slot.batch, 0, -1 - count)
  end
  if last ~= '' then
    call('SET', P .. object .. last_event_id, last)
  end
  if slot.handled then
    emits().finish(slot, object, over)
  end
  if count > 0 and has_failed(tag) then
    call('DEL', P .. object .. event_errors)
  end
  if result == 'hold' then
    hold().batch(hold().at_of(slot), object, rest == 'inf' and rest or now_ms + tonumber(rest), held_id)
    errors()(object, tag, count, held_id, error_kept)
    return false
  elseif rest == '' then
    call('DEL', slot.tag)
    slot.prev = prev_of(object, last)
    return true
  end
  call('SET', slot.tag, rest)
  again().give(slot, object, rest)
  return false
end

return commit_part
