-- errors: the errors of failed attempts with the first event of a batch, in OBJ:event.errors.
--
-- An entry is `MS ATTEMPT ERROR`, the newest first. An event that has not failed has no list and
-- costs no command, because the tag shows that it has not failed. If the key has a wrong type, no
-- error is stored, and nothing else changes. The key is then deleted with the event, like a valid
-- list.
local ERRORS_MAX, ERROR_BYTES_MAX = 20, 500

-- Adds an error to the list of a held event, if the event has failed more often than the tag of its
-- batch says. `count`: the number of finished events before it in the batch; `held_id`: the value
-- of OBJ:events.held.id; `why`: the error (nil: the error in `held_id`).
local function keep(object, tag, count, held_id, why)
  local _, _, attempts = rare.tag.held_numbers(held_id)
  local _, _, before = rare.tag.numbers(tag)
  if attempts <= (count > 0 and 0 or before) then
    return
  end
  why = why or rare.tag.held_error(held_id)
  local text = ids.text(rare.time.now_ms()) .. ' ' .. ids.text(attempts) .. ' ' .. rare.text.beginning(why, ERROR_BYTES_MAX)
  local kept = redis_try('LPUSH', P .. object .. K.event_errors, text)
  if not rare.quarantine.is_wrong_type(kept) and kept > ERRORS_MAX then
    redis_call('LTRIM', P .. object .. K.event_errors, 0, ERRORS_MAX - 1)
  end
end

return { keep = keep }
