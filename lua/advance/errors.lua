-- errors: how the event at the head of a batch has failed, in OBJ:event.errors. What never failed has no such list, and costs no command: the tag tells.
-- A list of a wrong type holds up nothing: it is written over by nobody, and goes as any other where the event ends.
local ERRORS_MAX, ERROR_BYTES_MAX = 20, 500

-- Keeps the error of an event that is held with these numbers, where it has failed once more than the tag of its batch says; `count` events before it
-- are over. The error is `why`, or else what the event is held for.
local function keep_error(object, tag, count, held_id, why)
  local attempts, why_at = string.match(held_id, '^%d+ %d+ (%d+) %d+ ()')
  local _, _, before = numbers(tag)
  if tonumber(attempts) <= (count > 0 and 0 or before) then
    return
  end
  why = why or string.sub(held_id, string.match(held_id, '^retry: ()', why_at) or string.match(held_id, '^attempts: .-: ()', why_at) or why_at)
  local kept = try('LPUSH', P .. object .. event_errors, text_of(now_ms) .. ' ' .. attempts .. ' ' .. beginning(why, ERROR_BYTES_MAX))
  if not is_wrong_type(kept) and kept > ERRORS_MAX then
    call('LTRIM', P .. object .. event_errors, 0, ERRORS_MAX - 1)
  end
end

return keep_error
