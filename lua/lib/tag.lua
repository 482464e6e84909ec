-- tag: the tag of a batch in flight, and the value of events.held.id, which tells the same numbers of a held one.

-- The four numbers of a tag, `FIRST[ HANDOUTS[ ATTEMPTS[ CRASHES]]]`; the first one stays text, as ids do.
local function numbers(tag)
  local first, rest = string.match(tag, '^(%d+)(.*)$')
  local handouts, attempts, crashes = string.match(rest or '', '^ (%d+) ?(%d*) ?(%d*)$')
  return first, tonumber(handouts) or 0, tonumber(attempts) or 0, tonumber(crashes) or 0
end

-- The tag of these numbers, without trailing zeros.
local function tag_of(first, handouts, attempts, crashes)
  if crashes > 0 then
    return string.format('%s %d %d %d', first, handouts, attempts, crashes)
  elseif attempts > 0 then
    return string.format('%s %d %d', first, handouts, attempts)
  elseif handouts > 0 then
    return string.format('%s %d', first, handouts)
  end
  return first
end

local function held_id_of(first, handouts, attempts, crashes, why)
  -- Not by %s, which cuts a name in it at a NUL.
  return string.format('%s %d %d %d ', first, handouts, attempts, crashes) .. why
end
