-- tag: the numbers of a batch, in flight or held, and the reason for a hold.
--
-- event.worker:W:event.id  the tag of a batch in flight: `FIRST[ HANDOUTS[ ATTEMPTS[ CRASHES]]]`,
--                          without trailing zeros; then a line feed and the object of the batch.
--                          `FIRST 0`: the first hand-out of an event whose key stands in
--                          OBJ:event.key
-- OBJ:events.held.id       the numbers of a held batch and the reason: `FIRST HANDOUTS ATTEMPTS
--                          CRASHES WHY`; FIRST is 0 for an object without a batch

-- The largest number after the id that a worker process can read.
local COUNT_MAX = 4294967295

-- Returns the value of event.worker:W:event.id.
local function stored(tag, object)
  return tag .. '\n' .. object
end

-- Returns the tag in a value of event.worker:W:event.id, and the object of the batch; nil if the value
-- names none.
local function split(value)
  local at = string.find(value, '\n', 1, true)
  if at then
    return string.sub(value, 1, at - 1), string.sub(value, at + 1)
  end
  return value, nil
end

-- Returns the four numbers of a tag, or of a value of event.worker:W:event.id. The first one is text, as
-- ids are.
local function numbers(tag)
  local first, rest = string.match(tag, '^(%d+)([^\n]*)')
  local handouts, attempts, crashes = string.match(rest or '', '^ (%d+) ?(%d*) ?(%d*)$')
  return first, tonumber(handouts) or 0, tonumber(attempts) or 0, tonumber(crashes) or 0
end

-- Returns the tag of these numbers.
local function text_of(first, handouts, attempts, crashes)
  if crashes > 0 then
    return string.format('%s %d %d %d', first, handouts, attempts, crashes)
  elseif attempts > 0 then
    return string.format('%s %d %d', first, handouts, attempts)
  elseif handouts > 0 then
    return string.format('%s %d', first, handouts)
  end
  return first
end

-- Returns the tag of the first hand-out of an event whose key stands in OBJ:event.key.
local function keyed(first)
  return first .. ' 0'
end

-- Returns whether the tag has a blank. Then the end of the batch needs additional steps: the tag
-- has hand-outs, attempts or crashes, or OBJ:event.key has the key of the event. `value`: a tag, or the
-- value of event.worker:W:event.id.
local function is_odd(value)
  return string.find(value, '^%d+ ') ~= nil
end

-- Returns the first id of a tag as a number; nil if the text is no tag.
local function first_of(tag)
  local parts, first = {}, nil
  for part in string.gmatch(tag, '[^ ]+') do
    local number = ids.parse(part)
    if not number or first and number > COUNT_MAX then
      return nil
    end
    parts[#parts + 1], first = part, first or number
  end
  local is_tag = #parts <= 4 and first and first > 0 and table.concat(parts, ' ') == tag
  return is_tag and first or nil
end

-- Returns the numbers of a held batch, and the position of the reason in the value; nil if the
-- value has no numbers.
local function held_numbers(value)
  local first, handouts, attempts, crashes, why_at = string.match(value, '^(%d+) (%d+) (%d+) (%d+) ?()')
  return first, tonumber(handouts), tonumber(attempts), tonumber(crashes), why_at
end

-- Returns the reason for the hold; nil if the value has no numbers.
local function held_why(value)
  local first, _, _, _, why_at = held_numbers(value)
  return first and string.sub(value, why_at)
end

-- Returns the error in a reason such as `retry: ERROR` or `attempts: failed N times, at last:
-- ERROR`; the whole reason if it is another one.
local function held_error(value)
  local _, _, _, _, why_at = held_numbers(value)
  local error_at = string.match(value, '^retry: ()', why_at) or string.match(value, '^attempts: .-: ()', why_at)
  return string.sub(value, error_at or why_at)
end

-- Returns the value of OBJ:events.held.id. `%s` would cut a name in the reason at a NUL.
local function held_text(first, handouts, attempts, crashes, why)
  return string.format('%s %d %d %d ', first, handouts, attempts, crashes) .. why
end

-- Returns whether the first event of the batch has failed before. `value`: a tag, or the value of
-- event.worker:W:event.id or OBJ:events.held.id.
local function has_failed(value)
  return string.find(value, '^%d+ %d+ [1-9]') ~= nil
end

return {
  stored = stored, split = split, numbers = numbers, text = text_of, first_of = first_of, held_numbers = held_numbers, held_why = held_why,
  held_error = held_error, held_text = held_text, has_failed = has_failed, keyed = keyed, is_odd = is_odd,
}
