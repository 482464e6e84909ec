-- pauses (passing): pauses objects under a rule, and wakes them when the rule is over.

-- The most objects that a call wakes.
local WAKE_MAX = 64
-- The objects that the call may still pause. At 0 the call claims nothing more, and the next call
-- goes on.
local pauses_left = 256
-- The fields of rules that the call may still read. At 0 the reply counts as full. An object that
-- is woken counts as 16 fields.
local fields_left, WOKEN_FIELDS = 2048, 16

-- Counts fields of rules that the call has read.
local function count_fields(count)
  fields_left = fields_left - count
  if fields_left <= 0 then
    rare.spending.fill()
  end
end

-- Returns whether a rule in force applies to the object.
local function is_over_now(object)
  local is_over, fields = rare.rules.look(object, rare.time.now_ms())
  count_fields(fields)
  return is_over
end

-- Counts an object that the call has paused.
local function count_pause()
  pauses_left = pauses_left - 1
  if pauses_left <= 0 then
    budget.claims_left = 0
  end
end

-- Pauses an object if it has events and a rule applies to it. The object has no owner, or belongs
-- to this slot. Returns whether it was paused. `source`: as for `claims.claim`. Does not
-- pause an object that is in objects.held although OBJ:event.worker is not `held`.
local function pause(slot, object, last, source)
  if not is_over_now(object) or redis_call('EXISTS', P .. object .. K.events) == 0 or redis_call('ZSCORE', P .. K.objects_held, object) then
    return false
  end
  redis_call('ZADD', P .. K.objects_paused, '0', object)
  redis_call('SET', P .. object .. K.event_worker, 'held')
  if source == 'list' then
    rare.shares.release(object)
    redis_call('LREM', slot.objects_key, '1', object)
  end
  if last and call.bounds.forgets then
    -- SET removes the time to live of the last id. A paused object is not idle, so its last id must
    -- not expire.
    redis_call('SET', P .. object .. K.last_event_id, last)
  end
  call.progress = true
  count_pause()
  return true
end

-- Pauses a due held object, with its batch, if a rule applies to it. Returns whether it was paused.
local function pause_held(object)
  if not is_over_now(object) then
    return false
  end
  redis_call('ZREM', P .. K.objects_held, object)
  redis_call('ZADD', P .. K.objects_paused, '0', object)
  count_pause()
  return true
end

-- Returns the lexical range of the names that a selector matches.
local function range_of(selector)
  local prefix = string.match(selector, '^(.*):%*$')
  if selector == '*' then
    return '-', '+'
  elseif prefix then
    return '[' .. prefix .. ':', '(' .. prefix .. ';'
  end
  return '[' .. selector, '[' .. selector
end

-- Returns whether one of the selectors `in_force` matches the object.
local function is_over(in_force, object)
  for _, selector in ipairs(rare.rules.selectors_of(object)) do
    if in_force[selector] then
      return true
    end
  end
  return false
end

-- Makes each of these objects due, unless a rule in force applies to it.
local function wake_those(objects, in_force)
  local woken, due = {}, {}
  for _, object in ipairs(objects) do
    if not is_over(in_force, object) then
      woken[#woken + 1] = object
      due[#due + 1], due[#due + 2] = rare.time.now_ms(), object
    end
  end
  if #woken > 0 then
    redis_call('ZADD', P .. K.objects_held, unpack(due))
    redis_call('ZREM', P .. K.objects_paused, unpack(woken))
  end
end

-- Wakes objects of rules that are lifted or past their end, and continues each rule where an
-- earlier call stopped. Deletes a rule that has no objects left. The rules can come in any order,
-- because an object is woken only if no rule in force applies to it.
local function wake_all()
  local all, left = redis_call('HGETALL', P .. K.event_rules), WAKE_MAX
  local in_force, over = {}, {}
  for i = 1, #all, 2 do
    local ends, lifted = rare.rules.times(all[i + 1])
    if rare.rules.is_in_force(ends, lifted, rare.time.now_ms()) then
      in_force[rare.rules.selector_of(all[i])] = true
    elseif ends then
      over[#over + 1] = i
    end
  end
  for _, i in ipairs(over) do
    if left <= 0 then
      break
    end
    local field, rule = all[i], rare.rules.parse(all[i + 1])
    local from, to = range_of(rare.rules.selector_of(field))
    if rule.cursor ~= '' then
      from = '(' .. rule.cursor
    end
    local objects = redis_call('ZRANGE', P .. K.objects_paused, from, to, 'BYLEX', 'LIMIT', 0, left)
    wake_those(objects, in_force)
    count_fields(WOKEN_FIELDS * #objects)
    if #objects < left then
      redis_call('HDEL', P .. K.event_rules, field)
      -- The deleted field must not count any more. `next` is no rule, so `next_of` passes over it.
      all[i] = 'next'
    else
      rule.lifted, rule.cursor = true, objects[#objects]
      all[i + 1] = rare.rules.text(rule)
      redis_call('HSET', P .. K.event_rules, field, all[i + 1])
    end
    left = left - 1 - #objects
  end
  call.rules_next, call.progress, call.held_changed = rare.rules.write_next(rare.rules.next_of(all)) or false, true, true
end

-- Wakes objects of rules if it is time.
local function wake()
  if call.rules_next ~= 'never' and tonumber(call.rules_next) <= rare.time.now_ms() then
    wake_all()
  end
end

return { pause = pause, pause_held = pause_held, wake = wake }
