-- errors: the errors of failed attempts with the first event of a batch, in OBJ:event.errors.
--
-- An entry is `MS ATTEMPT ERROR`, the newest first. An event without a failure has no list, and
-- costs no command: the tag shows the failures. A list of a wrong type stops nothing. It is not
-- written, and is deleted with the event, as any other list.
-- Uses: aside.is_wrong_type ids.text tag.held_error tag.held_numbers tag.numbers text.beginning
-- Uses: time.now_ms
local ERRORS_MAX, ERROR_BYTES_MAX = 20, 500

-- Adds the error of an event that is held, if it has failed once more than the tag of its batch
-- says. `count`: events before it that are over; `held_id`: the value of OBJ:events.held.id; `why`:
-- the error (nil: the one in held_id).
local function keep(object, tag, count, held_id, why)
  local _, _, attempts = M.tag.held_numbers(held_id)
  local _, _, before = M.tag.numbers(tag)
  if attempts <= (count > 0 and 0 or before) then
    return
  end
  why = why or M.tag.held_error(held_id)
  local text = M.ids.text(M.time.now_ms()) .. ' ' .. M.ids.text(attempts) .. ' ' .. M.text.beginning(why, ERROR_BYTES_MAX)
  local kept = try('LPUSH', P .. object .. K.event_errors, text)
  if not M.aside.is_wrong_type(kept) and kept > ERRORS_MAX then
    call('LTRIM', P .. object .. K.event_errors, 0, ERRORS_MAX - 1)
  end
end

return { keep = keep }
