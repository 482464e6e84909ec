-- rules (passing): pauses and blocks in event.rules.
--
-- A field is `KIND SELECTOR`. Its value has numbers, then three texts of the lengths given in them,
-- without blanks between the texts: `SET_MS END_MS LIFTED WHO_BYTES CURSOR_BYTES WHO CURSOR WHY`.
--   END_MS  the time at which the rule ends; 0: never
--   LIFTED  1 if the rule is lifted, else 0
--   CURSOR  of a lifted rule: the last of its objects that was woken, any bytes
-- One more field, `next`, is the time at which workers must next wake objects of a rule.

-- A prefix ends at one of the first 8 colons of a name. A name may have 512 colons, and each would
-- cost two lookups.
local COLONS_MAX = 8

-- The two kinds, each with the blank that follows it. KIND_BYTES is the length of each.
local KINDS, KIND_BYTES = { 'block ', 'pause ' }, 6

-- Returns the end of a rule, whether it is lifted, and when it was set; nil if the value is
-- invalid. Does not return the texts, which may be long, because a script that reads all rules
-- needs only the times.
local function times_of(value)
  local set, ends, lifted = string.match(value, '^(%d+) (%d+) ([01]) %d+ %d+ ')
  return tonumber(ends), lifted == '1', tonumber(set)
end

-- Returns the value of the rule with another time of setting and another end.
local function with_times(value, set_ms, ends)
  return string.format('%.0f %.0f ', set_ms, ends) .. string.sub(value, string.match(value, '^%d+ %d+ ()'))
end

-- Returns the rule of a value, with its fields by name; nil if the value is invalid.
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

-- Returns the value of a rule. Joins the texts, because `%s` would cut a name at a NUL.
local function text_of(rule)
  local numbers = string.format('%s %.0f %d %d %d ', rule.set, rule.ends, rule.lifted and 1 or 0, #rule.who, #rule.cursor)
  return numbers .. rule.who .. rule.cursor .. rule.why
end

-- Returns the field of a rule.
local function field(kind, selector)
  return kind .. ' ' .. selector
end

-- Returns the selector in the field of a rule.
local function selector_of(name)
  return string.sub(name, KIND_BYTES + 1)
end

-- Returns whether the field and its value are a rule.
local function is_rule(name, value)
  local kind = string.sub(name, 1, KIND_BYTES)
  return (kind == KINDS[1] or kind == KINDS[2]) and times_of(value) ~= nil
end

-- Returns whether a rule with these times holds objects. Returns false for a lifted rule, for an
-- ended rule, and for an invalid value.
local function is_in_force(ends, lifted, now_ms)
  return ends ~= nil and not lifted and (ends == 0 or ends > now_ms)
end

-- Returns the selectors that match the object: `*` for all objects, its prefixes, and its name.
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
  for _, kind in ipairs(KINDS) do
    for _, selector in ipairs(selectors) do
      fields[#fields + 1] = kind .. selector
    end
  end
  return fields
end

-- The fields of event.rules that this call has read, each with a boolean: whether its rule is in
-- force. The call reads each field once, because objects have most of these fields in common.
local asked = {}

-- Returns whether a rule in force applies to the object, and the number of fields read for it.
local function look(object, now_ms)
  local fields = {}
  for _, name in ipairs(fields_of(object)) do
    if asked[name] then
      return true, 0
    elseif asked[name] == nil then
      fields[#fields + 1], asked[name] = name, false
    end
  end
  local is_over = false
  for n, value in ipairs(#fields > 0 and redis_call('HMGET', P .. K.event_rules, unpack(fields)) or {}) do
    local ends, lifted = times_of(value or '')
    if is_in_force(ends, lifted, now_ms) then
      asked[fields[n]], is_over = true, true
    end
  end
  return is_over, #fields
end

-- Returns the time at which workers must next wake objects of a rule: 0 if a rule is lifted, else
-- the earliest end of a rule; infinity if no rule has an end; nil if there is no rule. `all`:
-- fields and values of the hash.
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

-- Returns the value of the field `next` for this time; nil if the field is to be absent.
local function next_text(soonest)
  return soonest and (soonest < math.huge and string.format('%.0f', soonest) or 'never')
end

-- Writes the field `next`, and returns its value.
local function write_next(soonest)
  local text = next_text(soonest)
  if text then
    redis_call('HSET', P .. K.event_rules, 'next', text)
  else
    redis_call('HDEL', P .. K.event_rules, 'next')
  end
  return text
end

return {
  times = times_of, with_times = with_times, parse = parse, text = text_of, field = field, selector_of = selector_of,
  is_rule = is_rule, is_in_force = is_in_force, selectors_of = selectors_of, fields_of = fields_of, look = look,
  next_of = next_of, next_text = next_text, write_next = write_next,
}
