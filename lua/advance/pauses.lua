-- pauses: pauses objects under a rule, and wakes them when the rule is over.
-- Uses: rules.is_in_force rules.look rules.next_of rules.parse rules.selector_of rules.selectors_of
-- Uses: rules.text rules.times rules.write_next share.release time.now_ms

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
    C.bytes_left = math.min(C.bytes_left, 0)
  end
end

-- Returns whether a rule in force applies to the object.
local function is_over_now(object)
  local is_over, fields = M.rules.look(object, M.time.now_ms())
  count_fields(fields)
  return is_over
end

-- Counts an object that the call has paused.
local function count_pause()
  pauses_left = pauses_left - 1
  if pauses_left <= 0 then
    C.claims_left = 0
  end
end

-- Pauses an object if it has events and a rule applies to it. The object has no owner, or belongs
-- to this slot. Returns whether it was paused. `source`: as for `own` (lua/advance.lua). Does not
-- pause an object that is in objects.held although OBJ:event.worker is not `held`.
local function pause(i, object, last, source)
  if not is_over_now(object) or call('EXISTS', P .. object .. K.events) == 0 or call('ZSCORE', P .. K.objects_held, object) then
    return false
  end
  call('ZADD', P .. K.objects_paused, '0', object)
  call('SET', P .. object .. K.event_worker, 'held')
  if source == 'list' then
    M.share.release(object)
    call('LREM', C.base[i] .. K.worker_object, '1', object)
  end
  if last and C.forgets then
    -- SET removes the time to live of the last id. A paused object is not idle, so its last id must
    -- not expire.
    call('SET', P .. object .. K.last_event_id, last)
  end
  C.progress = true
  count_pause()
  return true
end

-- Pauses a due held object, with its batch, if a rule applies to it. Returns whether it was paused.
local function pause_held(object)
  if not is_over_now(object) then
    return false
  end
  call('ZREM', P .. K.objects_held, object)
  call('ZADD', P .. K.objects_paused, '0', object)
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
  for _, selector in ipairs(M.rules.selectors_of(object)) do
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
      due[#due + 1], due[#due + 2] = M.time.now_ms(), object
    end
  end
  if #woken > 0 then
    call('ZADD', P .. K.objects_held, unpack(due))
    call('ZREM', P .. K.objects_paused, unpack(woken))
  end
end

-- Wakes objects of rules that are lifted or past their end, and continues each rule where an
-- earlier call stopped. Deletes a rule that has no objects left. The rules can come in any order,
-- because an object is woken only if no rule in force applies to it.
local function wake()
  local all, left = call('HGETALL', P .. K.event_rules), WAKE_MAX
  local in_force, over = {}, {}
  for i = 1, #all, 2 do
    local ends, lifted = M.rules.times(all[i + 1])
    if M.rules.is_in_force(ends, lifted, M.time.now_ms()) then
      in_force[M.rules.selector_of(all[i])] = true
    elseif ends then
      over[#over + 1] = i
    end
  end
  for _, i in ipairs(over) do
    if left <= 0 then
      break
    end
    local field, rule = all[i], M.rules.parse(all[i + 1])
    local from, to = range_of(M.rules.selector_of(field))
    if rule.cursor ~= '' then
      from = '(' .. rule.cursor
    end
    local objects = call('ZRANGE', P .. K.objects_paused, from, to, 'BYLEX', 'LIMIT', 0, left)
    wake_those(objects, in_force)
    count_fields(WOKEN_FIELDS * #objects)
    if #objects < left then
      call('HDEL', P .. K.event_rules, field)
      -- The deleted field must not count any more. `next` is no rule, so `next_of` passes over it.
      all[i] = 'next'
    else
      rule.lifted, rule.cursor = true, objects[#objects]
      all[i + 1] = M.rules.text(rule)
      call('HSET', P .. K.event_rules, field, all[i + 1])
    end
    left = left - 1 - #objects
  end
  C.rules_next, C.progress, C.held_changed = M.rules.write_next(M.rules.next_of(all)) or false, true, true
end

return { pause = pause, pause_held = pause_held, wake = wake }
