-- pauses: objects under a rule are paused, and woken when it is over.
-- Uses: rules.KIND_BYTES rules.is_in_force rules.look rules.next_of rules.parse rules.selectors_of
-- Uses: rules.text rules.times rules.write_next time.now_ms
local WAKE_MAX = 64
-- More than one call should pause: then it claims nothing further, and the next one goes on.
local pauses_left = 256
-- Fields of rules that one call asks for. Behind them it takes nothing further: the reply counts as
-- full. An object that is woken counts as 16.
local fields_left, WOKEN_FIELDS = 2048, 16

local function count_fields(count)
  fields_left = fields_left - count
  if fields_left <= 0 then
    C.bytes_left = math.min(C.bytes_left, 0)
  end
end

local function is_over_now(object)
  local is_over, fields = M.rules.look(object, M.time.now_ms())
  count_fields(fields)
  return is_over
end

local function count_pause()
  pauses_left = pauses_left - 1
  if pauses_left <= 0 then
    C.claims_left = 0
  end
end

-- Pauses an object that nobody runs, or this slot, if it has events and a rule is over it. Returns
-- whether it has. `named`: the slot's list has it. One that is held already, though its owner's key
-- does not tell so, is left to who looks at that.
local function pause(i, object, last, named)
  if not is_over_now(object) or call('EXISTS', P .. object .. K.events) == 0 or call('ZSCORE', P .. K.objects_held, object) then
    return false
  end
  call('ZADD', P .. K.objects_paused, '0', object)
  call('SET', P .. object .. K.event_worker, 'held')
  if named then
    call('LREM', C.base[i] .. K.worker_object, '1', object)
  end
  if last and C.forget_ms > 0 then
    -- Set anew it has no time to live: what is paused is not idle, however long.
    call('SET', P .. object .. K.last_event_id, last)
  end
  C.progress = true
  count_pause()
  return true
end

-- Pauses a due held object that a rule is over, with the batch it has. Returns whether it has.
local function pause_held(object)
  if not is_over_now(object) then
    return false
  end
  call('ZREM', P .. K.objects_held, object)
  call('ZADD', P .. K.objects_paused, '0', object)
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
  for _, selector in ipairs(M.rules.selectors_of(object)) do
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
      due[#due + 1], due[#due + 2] = M.time.now_ms(), object
    end
  end
  if #woken > 0 then
    call('ZADD', P .. K.objects_held, unpack(due))
    call('ZREM', P .. K.objects_paused, unpack(woken))
  end
end

-- Goes on with the waking of rules that are lifted or past their end, where another call has left
-- off; a rule of which nothing is left to wake goes. The hash is not asked in any order, and needs
-- none: what is over an object does not depend on it.
local function wake()
  local all, left = call('HGETALL', P .. K.event_rules), WAKE_MAX
  local in_force, over = {}, {}
  for i = 1, #all, 2 do
    local ends, lifted = M.rules.times(all[i + 1])
    if M.rules.is_in_force(ends, lifted, M.time.now_ms()) then
      in_force[string.sub(all[i], M.rules.KIND_BYTES + 1)] = true
    elseif ends then
      over[#over + 1] = i
    end
  end
  for _, i in ipairs(over) do
    if left <= 0 then
      break
    end
    local field, rule = all[i], M.rules.parse(all[i + 1])
    local from, to = range_of(string.sub(field, M.rules.KIND_BYTES + 1))
    if rule.cursor ~= '' then
      from = '(' .. rule.cursor
    end
    local objects = call('ZRANGE', P .. K.objects_paused, from, to, 'BYLEX', 'LIMIT', 0, left)
    wake_those(objects, in_force)
    count_fields(WOKEN_FIELDS * #objects)
    if #objects < left then
      call('HDEL', P .. K.event_rules, field)
      -- As any field that is no rule.
      all[i] = 'next'
    else
      rule.lifted, rule.cursor = true, objects[#objects]
      all[i + 1] = M.rules.text(rule)
      call('HSET', P .. K.event_rules, field, all[i + 1])
    end
    left = left - 1 - #objects
  end
  C.rules_next, C.progress, C.held_changed = M.rules.write_next(M.rules.next_of(all)), true, true
end

return { pause = pause, pause_held = pause_held, wake = wake }
