-- rules: pauses and blocks, as event.rules has them. A field of event.rules is `KIND SELECTOR`; its
-- value is numbers, then text of the lengths they tell: `SET_MS END_MS LIFTED WHO_BYTES
-- CURSOR_BYTES WHO CURSOR WHY`, without blanks between the texts. END_MS is 0 where the rule has no
-- end; LIFTED is 1 once it is lifted, and then the objects up to CURSOR, which may be any bytes,
-- have been woken. The field `next` tells when a rule is to be woken next.

-- A prefix ends at one of the first 8 colons of a name. A name may have 512, and each would be two
-- lookups more.
local COLONS_MAX = 8

-- Returns the end of a rule, whether it is lifted, and when it was set; nil if the value is no
-- rule. Its texts, which may be long, are not taken apart: a script that reads all rules needs no
-- more.
local function times_of(value)
  local set, ends, lifted = string.match(value, '^(%d+) (%d+) ([01]) %d+ %d+ ')
  return tonumber(ends), lifted == '1', tonumber(set)
end

-- Returns the value of the rule with another time at which it was set, and another end.
local function with_times(value, set_ms, ends)
  return string.format('%.0f %.0f ', set_ms, ends) .. string.sub(value, string.match(value, '^%d+ %d+ ()'))
end

local function parse(value)
  local set, ends, lifted, who_len, cursor_len, text_at = string.match(value, '^(%d+) (%d+) ([01]) (%d+) (%d+) ()')
  if not text_at then
    return nil
  end
  local cursor_at, why_at = text_at + who_len, text_at + who_len + cursor_len
  return {
    set = set, ends = tonumber(ends), lifted = lifted == '1', who = string.sub(value, text_at, cursor_at - 1),
    cursor = string.sub(value, cursor_at, why_at - 1), why = string.sub(value, why_at),
  }
end

-- Not by %s, which cuts a name at a NUL.
local function text_of(rule)
  local numbers = string.format('%s %.0f %d %d %d ', rule.set, rule.ends, rule.lifted and 1 or 0, #rule.who, #rule.cursor)
  return numbers .. rule.who .. rule.cursor .. rule.why
end

-- Whether a rule with these times holds anything. A rule that is lifted or past its end does not;
-- nor does a value that is no rule.
local function is_in_force(ends, lifted, now_ms)
  return ends ~= nil and not lifted and (ends == 0 or ends > now_ms)
end

-- Both kinds of rules have names of five letters and a blank.
local KIND_BYTES = 6

-- Returns the selectors that mean the object: everything, each prefix at one of its first 8 colons,
-- the object.
local function selectors_of(object)
  local selectors, colon = { '*' }, string.find(object, ':', 1, true)
  while colon and #selectors <= COLONS_MAX do
    selectors[#selectors + 1] = string.sub(object, 1, colon) .. '*'
    colon = string.find(object, ':', colon + 1, true)
  end
  selectors[#selectors + 1] = object
  return selectors
end

-- Returns the fields of all possible rules for the object, blocks first.
local function fields_of(object)
  local selectors, fields = selectors_of(object), {}
  for _, kind in ipairs({ 'block ', 'pause ' }) do
    for _, selector in ipairs(selectors) do
      fields[#fields + 1] = kind .. selector
    end
  end
  return fields
end

-- Fields that this call has asked for, each with whether its rule is in force: objects share most
-- of them.
local asked = {}

-- Returns whether a rule in force is over the object, and how many fields it has asked for.
local function look(object, now_ms)
  local fields = {}
  for _, field in ipairs(fields_of(object)) do
    if asked[field] then
      return true, 0
    elseif asked[field] == nil then
      fields[#fields + 1], asked[field] = field, false
    end
  end
  local is_over = false
  for n, value in ipairs(#fields > 0 and call('HMGET', P .. K.event_rules, unpack(fields)) or {}) do
    local ends, lifted = times_of(value or '')
    if is_in_force(ends, lifted, now_ms) then
      asked[fields[n]], is_over = true, true
    end
  end
  return is_over, #fields
end

-- When a rule is to be woken next, of all fields and values: 0 if one is lifted, else the first
-- end, or infinity; nil if there is no rule.
local function next_of(all)
  local soonest
  for i = 1, #all, 2 do
    if all[i] ~= 'next' then
      local ends, lifted = times_of(all[i + 1])
      local at = ends and (lifted and 0 or ends > 0 and ends) or math.huge
      soonest = math.min(soonest or at, at)
    end
  end
  return soonest
end

-- The same as the field `next` has it; nil if there is no such field.
local function next_text(soonest)
  return soonest and (soonest < math.huge and string.format('%.0f', soonest) or 'never')
end

-- Writes down when a rule is to be woken next, and returns it as it is written.
local function write_next(soonest)
  local text = next_text(soonest)
  if text then
    call('HSET', P .. K.event_rules, 'next', text)
  else
    call('HDEL', P .. K.event_rules, 'next')
  end
  return text
end

return {
  KIND_BYTES = KIND_BYTES, times = times_of, with_times = with_times, parse = parse, text = text_of, is_in_force = is_in_force,
  selectors_of = selectors_of, fields_of = fields_of, look = look, next_of = next_of, next_text = next_text, write_next = write_next,
}
