-- errors: how the event at the head of a batch has failed, in OBJ:event.errors. What never failed
-- has no such list, and costs no command: the tag tells. A list of a wrong type holds up nothing:
-- it is written over by nobody, and goes as any other where the event ends.
-- Uses: aside.is_wrong_type ids.text tag.held_numbers tag.numbers text.beginning time.now_ms
local ERRORS_MAX, ERROR_BYTES_MAX = 20, 500

-- Keeps the error of an event that is held with these numbers, if it has failed once more than the
-- tag of its batch says; `count` events before it are over. The error is `why`, or else what the
-- event is held for.
local function keep(object, tag, count, held_id, why)
  local _, _, attempts, _, why_at = M.tag.held_numbers(held_id)
  local _, _, before = M.tag.numbers(tag)
  if attempts <= (count > 0 and 0 or before) then
    return
  end
  why = why or string.sub(held_id, string.match(held_id, '^retry: ()', why_at) or string.match(held_id, '^attempts: .-: ()', why_at) or why_at)
  local text = M.ids.text(M.time.now_ms()) .. ' ' .. M.ids.text(attempts) .. ' ' .. M.text.beginning(why, ERROR_BYTES_MAX)
  local kept = try('LPUSH', P .. object .. K.event_errors, text)
  if not M.aside.is_wrong_type(kept) and kept > ERRORS_MAX then
    call('LTRIM', P .. object .. K.event_errors, 0, ERRORS_MAX - 1)
  end
end

return { keep = keep }
