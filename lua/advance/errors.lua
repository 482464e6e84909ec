-- errors: the errors of failed attempts with the first event of a batch, in OBJ:event.errors.
--
-- An entry is `MS ATTEMPT ERROR`, the newest first. An event that has not failed has no list and
-- costs no command, because the tag shows that it has not failed. If the key has a wrong type, no
-- error is stored, and nothing else changes. The key is then deleted with the event, like a valid
-- list.
-- Uses: aside.is_wrong_type ids.text tag.held_error tag.held_numbers tag.numbers text.beginning
-- Uses: time.now_ms
local ERRORS_MAX, ERROR_BYTES_MAX = 20, 500

-- Adds an error to the list of a held event, if the event has failed more often than the tag of its
-- batch says. `count`: the number of finished events before it in the batch; `held_id`: the value
-- of OBJ:events.held.id; `why`: the error (nil: the error in `held_id`).
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
