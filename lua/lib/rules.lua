-- rules: pauses and blocks. A field of event.rules is `KIND SELECTOR`; its value is numbers, then text of the lengths they tell:
-- `SET_MS END_MS LIFTED WHO_BYTES CURSOR_BYTES WHO CURSOR WHY`, without blanks between the texts. END_MS is 0 where the rule has no end; LIFTED is 1 once
-- it is lifted, and then the objects up to CURSOR, which may be any bytes, have been woken. The field `next` tells when a rule is to be woken next.

-- A prefix ends at one of the first 8 colons of a name. A name may have 512, and each would be two lookups more.
local COLONS_MAX = 8

local function rule_of(value)
  local set, ends, lifted, who_len, cursor_len, text = string.match(value, '^(%d+) (%d+) ([01]) (%d+) (%d+) (.*)$')
  if not text then
    return nil
  end
  local cursor_at, why_at = 1 + who_len, 1 + who_len + cursor_len
  return {
    set = set, ends = tonumber(ends), lifted = lifted == '1', who = string.sub(text, 1, cursor_at - 1),
    cursor = string.sub(text, cursor_at, why_at - 1), why = string.sub(text, why_at),
  }
end

-- Not by %s, which cuts a name at a NUL.
local function rule_text(rule)
  local numbers = string.format('%s %.0f %d %d %d ', rule.set, rule.ends, rule.lifted and 1 or 0, #rule.who, #rule.cursor)
  return numbers .. rule.who .. rule.cursor .. rule.why
end

-- Whether it holds anything; what is lifted or past its end does not.
local function is_in_force(rule, now_ms)
  return not rule.lifted and (rule.ends == 0 or rule.ends > now_ms)
end

-- Returns the fields of all possible rules for the object, blocks first: everything, each prefix at one of its first 8 colons, the object.
local function rule_fields(object)
  local selectors, colon = { '*' }, string.find(object, ':', 1, true)
  while colon and #selectors <= COLONS_MAX do
    selectors[#selectors + 1] = string.sub(object, 1, colon) .. '*'
    colon = string.find(object, ':', colon + 1, true)
  end
  selectors[#selectors + 1] = object
  local fields = {}
  for _, kind in ipairs({ 'block ', 'pause ' }) do
    for _, selector in ipairs(selectors) do
      fields[#fields + 1] = kind .. selector
    end
  end
  return fields
end

-- Whether a rule in force is over the object.
local function is_ruled(object, now_ms)
  for _, value in ipairs(redis.call('HMGET', P .. event_rules, unpack(rule_fields(object)))) do
    local rule = value and rule_of(value)
    if rule and is_in_force(rule, now_ms) then
      return true
    end
  end
  return false
end

-- When a rule is to be woken next, of all fields and values: 0 where one is lifted, else the first end, or `never`; nothing where there is no rule.
local function next_of(all)
  local soonest
  for i = 1, #all, 2 do
    if all[i] ~= 'next' then
      local rule = rule_of(all[i + 1])
      local at = rule and (rule.lifted and 0 or rule.ends > 0 and rule.ends) or math.huge
      soonest = math.min(soonest or at, at)
    end
  end
  return soonest and (soonest < math.huge and string.format('%.0f', soonest) or 'never')
end

local function write_next()
  local at = next_of(redis.call('HGETALL', P .. event_rules))
  if at then
    redis.call('HSET', P .. event_rules, 'next', at)
  else
    redis.call('HDEL', P .. event_rules, 'next')
  end
  return at
end
