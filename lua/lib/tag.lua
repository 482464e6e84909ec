-- tag: the numbers of a batch in flight, or held.
-- The tag of a batch in flight has them, and so has the value of events.held.id.

-- Returns the four numbers of a tag, `FIRST[ HANDOUTS[ ATTEMPTS[ CRASHES]]]`; the first one stays
-- text, as ids do.
local function numbers(tag)
  local first, rest = string.match(tag, '^(%d+)(.*)$')
  local handouts, attempts, crashes = string.match(rest or '', '^ (%d+) ?(%d*) ?(%d*)$')
  return first, tonumber(handouts) or 0, tonumber(attempts) or 0, tonumber(crashes) or 0
end

-- Returns the tag of these numbers, without trailing zeros.
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

-- Returns the numbers of a held batch, `FIRST HANDOUTS ATTEMPTS CRASHES WHY`, and where in the
-- value the reason begins; nil if it has no numbers.
local function held_numbers(value)
  local first, handouts, attempts, crashes, why_at = string.match(value, '^(%d+) (%d+) (%d+) (%d+) ?()')
  return first, tonumber(handouts), tonumber(attempts), tonumber(crashes), why_at
end

-- Returns the value of events.held.id. Not by %s, which cuts a name in the reason at a NUL.
local function held_text(first, handouts, attempts, crashes, why)
  return string.format('%s %d %d %d ', first, handouts, attempts, crashes) .. why
end

-- Returns whether the event at the head of the batch has failed before; `value` is its tag, or the
-- value of events.held.id.
local function has_failed(value)
  return string.find(value, '^%d+ %d+ [1-9]') ~= nil
end

return { numbers = numbers, text = text_of, held_numbers = held_numbers, held_text = held_text, has_failed = has_failed }
