-- rules: objects under a rule are held in objects.paused, and those of a rule that is over are woken, some in each call.
local WAKE_MAX = 64
-- More than one call should pause: then it claims nothing further, and the next one goes on.
local pauses_left = 256
-- Fields of rules that one call asks for. Behind them it takes nothing further: the reply counts as full. An object that is woken counts as 16.
local fields_left, WOKEN_FIELDS = 2048, 16

local function count_fields(count)
  fields_left = fields_left - count
  if fields_left <= 0 then
    reply_bytes = math.min(reply_bytes, 0)
  end
end

local function is_over_now(object)
  local is_over, fields = is_ruled(object, now_ms)
  count_fields(fields)
  return is_over
end

local function pause(slot, object, named)
  call('ZADD', P .. objects_paused, '0', object)
  call('SET', P .. object .. event_worker, 'held')
  if named then
    call('LREM', slot.list, '1', object)
  end
  progress = true
end

local function count_pause()
  pauses_left = pauses_left - 1
  if pauses_left <= 0 then
    claims = 0
  end
end

-- Pauses an object that nobody runs, or this slot, where it has events and a rule is over it. Answers whether it has. `named`: the slot's list has it.
-- One that is held already, though its owner's key does not tell so, is left to who looks at that.
local function pause_ruled(slot, object, last, named)
  if not is_over_now(object) or call('EXISTS', P .. object .. events) == 0 or call('ZSCORE', P .. objects_held, object) then
    return false
  end
  pause(slot, object, named)
  if last and forget_ms > 0 then
    -- Set anew it has no time to live: what is paused is not idle, however long.
    call('SET', P .. object .. last_event_id, last)
  end
  count_pause()
  return true
end

-- Pauses a due held object that a rule is over, with the batch it has. Answers whether it has.
local function pause_held(object)
  if not is_over_now(object) then
    return false
  end
  call('ZREM', P .. objects_held, object)
  call('ZADD', P .. objects_paused, '0', object)
  count_pause()
  return true
end

-- The names that a selector means, as a lexical range.
local function range_of(selector)
  local prefix = string.match(selector, '^(.*):%*$')
  if selector == '*' then
    return '-', '+'
  elseif prefix then
    return '[' .. prefix .. ':', '(' .. prefix .. ';'
  end
  return '[' .. selector, '[' .. selector
end

-- Whether one of the selectors of the rules in force means the object.
local function is_over(in_force, object)
  for _, selector in ipairs(selectors_of(object)) do
    if in_force[selector] then
      return true
    end
  end
  return false
end

-- Makes due what no other rule is over.
local function wake_those(objects, in_force)
  local woken, due = {}, {}
  for _, object in ipairs(objects) do
    if not is_over(in_force, object) then
      woken[#woken + 1] = object
      due[#due + 1], due[#due + 2] = now_ms, object
    end
  end
  if #woken > 0 then
    call('ZADD', P .. objects_held, unpack(due))
    call('ZREM', P .. objects_paused, unpack(woken))
  end
end

-- Goes on with the waking of rules that are lifted or past their end, where another call has left off; a rule of which nothing is left to wake goes.
-- The hash is not asked in any order, and needs none: what is over an object does not depend on it.
local function wake()
  local all, left = call('HGETALL', P .. event_rules), WAKE_MAX
  local in_force, over = {}, {}
  for i = 1, #all, 2 do
    local ends, lifted = times_of(all[i + 1])
    if is_in_force(ends, lifted, now_ms) then
      in_force[string.sub(all[i], KIND_BYTES + 1)] = true
    elseif ends then
      over[#over + 1] = i
    end
  end
  for _, i in ipairs(over) do
    if left <= 0 then
      break
    end
    local field, rule = all[i], rule_of(all[i + 1])
    local from, to = range_of(string.sub(field, KIND_BYTES + 1))
    if rule.cursor ~= '' then
      from = '(' .. rule.cursor
    end
    local objects = call('ZRANGE', P .. objects_paused, from, to, 'BYLEX', 'LIMIT', 0, left)
    wake_those(objects, in_force)
    count_fields(WOKEN_FIELDS * #objects)
    if #objects < left then
      call('HDEL', P .. event_rules, field)
      -- As any field that is no rule.
      all[i] = 'next'
    else
      rule.lifted, rule.cursor = true, objects[#objects]
      all[i + 1] = rule_text(rule)
      call('HSET', P .. event_rules, field, all[i + 1])
    end
    left = left - 1 - #objects
  end
  rules_next, progress = write_next(next_of(all)), true
end

return { pause = pause_ruled, pause_held = pause_held, wake = wake }
