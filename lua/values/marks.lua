-- marks: markers with a time, which tell how long the oldest marker has waited.
--
-- A mark is a marker whose name is a NUL, `t`, and a time in ms. No object has such a name. Markers
-- are taken in order. So when a call meets a mark, every marker that is left is younger than this
-- mark. event.marks (zset) has the time of each mark that waits, as member and as score. The score
-- of the member MET is the time of the mark that was met last, or a time at which there was no
-- marker. A call that meets a mark also removes all older marks from event.marks, because a worker
-- of an older version takes marks, but leaves them in event.marks. If the key has a wrong type,
-- nothing is noted: no event depends on marks, and `check` reports the key.
local MET, EVERY_MS, PART, MARKS_MAX, MOST, TAIL = 'met', 1000, 4096, 50000, 1000, 500

local function is_mark(name)
  return string.find(name, '^%zt%d+$') ~= nil
end

-- Removes up to MOST members with this score or a lower one, and gives MET this score. Returns
-- whether more such marks are left.
local function forget(score)
  local key = P .. K.event_marks
  local over = redis_call('ZRANGE', key, '-inf', score, 'BYSCORE', 'LIMIT', '0', MOST)
  if over[1] then
    redis_call('ZREM', key, unpack(over))
  end
  redis_call('ZADD', key, score, MET)
  return #over == MOST
end

-- Notes that a call has met this mark. Returns whether event.marks had the mark. A producer may
-- have pushed a mark that is not there.
local function met(name)
  local score = redis_try('ZSCORE', P .. K.event_marks, string.sub(name, 3))
  if type(score) ~= 'string' then
    return false
  end
  for _ = 1, 10 do
    if not forget(score) then
      break
    end
  end
  return true
end

-- Notes that a call has met these marks. Only the newest known mark counts. It need not be the last
-- of them, because names that return from a slot's list to the markers may change their order.
local function met_all(names)
  local times, name_of = {}, {}
  for n, name in ipairs(names) do
    times[n] = tonumber(string.sub(name, 3))
    name_of[times[n]] = name
  end
  table.sort(times)
  for n = #times, 1, -1 do
    if met(name_of[times[n]]) then
      return
    end
  end
end

-- Returns why event.marks is to be brought up to date; nil if nothing is to be done:
--   ahead  its newest time is ahead of the clock
--   none   no marker waits, so the time is to be noted
--   tail   a mark is taken next, so no marker waits before it
--   push   a mark is to be pushed
-- While markers wait, marks are 1 s apart. After the oldest marker has waited for about an hour,
-- they are farther apart, so that their number stays bounded.
local function due(now_ms)
  local key, list = P .. K.event_marks, P .. K.objects_with_events
  local markers, newest = redis_try('LLEN', list), redis_try('ZRANGE', key, '-1', '-1', 'WITHSCORES')
  if type(markers) ~= 'number' or newest.err then
    return nil
  end
  local newest_ms = tonumber(newest[2] or 0)
  if newest_ms > now_ms then
    return 'ahead'
  elseif markers > 0 and is_mark(redis_call('LINDEX', list, '-1')) then
    return 'tail'
  end
  local oldest = redis_call('ZRANGE', key, '0', '0', 'WITHSCORES')
  local age_ms = markers > 0 and oldest[2] and now_ms - oldest[2] or 0
  if now_ms - newest_ms < math.max(EVERY_MS, age_ms / PART) then
    return nil
  end
  return markers > 0 and 'push' or 'none'
end

-- Brings event.marks up to date: pushes a mark while markers wait. Returns `pushed`, `noted` or
-- `kept`; or `denied` and a command that the user may not use.
local function push()
  local key, list, now_ms = P .. K.event_marks, P .. K.objects_with_events, rare.time.now_ms()
  local why = due(now_ms)
  if not why then
    return 'kept'
  end
  -- All rights are checked before the first write. A mark in event.marks that is not among the
  -- markers would never be met.
  for _, command in ipairs({ { 'ZADD', key, '0', 'm' }, { 'ZREM', key, 'm' }, { 'LPUSH', list, 'v' }, { 'RPOP', list } }) do
    if not redis.acl_check_cmd(unpack(command)) then
      return 'denied', command[1]
    end
  end
  -- No marker waits before the marks at the tail. They are still there because all slots are busy,
  -- so that no worker takes markers. This call removes them.
  for _ = 1, why == 'tail' and TAIL or 0 do
    local oldest = redis_call('LINDEX', list, '-1')
    if not oldest or not is_mark(oldest) then
      break
    end
    redis_call('RPOP', list)
    met(oldest)
  end
  if why == 'tail' then
    why = due(now_ms)
  end
  local now_text = string.format('%.0f', now_ms)
  if why == 'ahead' then
    -- The clock has stepped back. Scores that are ahead of the clock are set to the present time.
    local ahead = redis_call('ZRANGE', key, '(' .. now_text, '+inf', 'BYSCORE', 'LIMIT', '0', MOST)
    for _, mark in ipairs(ahead) do
      redis_call('ZADD', key, now_text, mark)
    end
  elseif why == 'none' then
    -- Every marker that comes later is younger than this moment.
    forget(now_text)
  elseif why == 'push' and redis_call('ZCARD', key) < MARKS_MAX then
    redis_call('ZADD', key, now_text, now_text)
    redis_call('LPUSH', list, '\0t' .. now_text)
    return 'pushed'
  end
  return 'noted'
end

-- Returns whether `push` would change anything.
local function is_due()
  return due(rare.time.now_ms()) ~= nil
end

return { MET = MET, is_mark = is_mark, met = met, met_all = met_all, is_due = is_due, push = push }
