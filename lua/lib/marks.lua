-- marks: markers with a time, which tell how long the oldest marker has waited.
--
-- A mark is a marker whose name is a NUL, `t`, and a time in ms. No object has such a name. Markers
-- are taken in order. So when a call meets a mark, every marker that is left is younger than it.
-- event.marks (zset) has the time of each mark that waits, as member and as score. The score of the
-- member MET is the time of the mark that was met last, or a time at which there was no marker. A
-- mark that is met also ends all older marks, because an older version drops marks without a note.
-- If the key has a wrong type, nothing is noted: no event depends on marks, and `check` reports the
-- key.
-- Uses: time.now_ms
local MET, MARKS_MAX, EVERY_MS, PART = 'met', 1000, 1000, 32

local function is_mark(name)
  return string.find(name, '^%zt%d+$') ~= nil
end

-- Notes that a call has met this mark. Returns whether event.marks had the mark; a producer may have
-- pushed another one.
local function met(name)
  local key = P .. K.event_marks
  local score = try('ZSCORE', key, string.sub(name, 3))
  if type(score) ~= 'string' then
    return false
  end
  call('ZREM', key, unpack(call('ZRANGE', key, '-inf', score, 'BYSCORE', 'LIMIT', '0', MARKS_MAX)))
  call('ZADD', key, score, MET)
  return true
end

-- Returns the number of markers and the time of the newest mark, if event.marks is to be brought up
-- to date; otherwise nil. While markers wait, marks are 1 s apart, and farther apart the longer the
-- oldest marker has waited. So an age is exact to about 3 %, with few marks.
local function due(now_ms)
  local key, markers = P .. K.event_marks, try('LLEN', P .. K.objects_with_events)
  local newest = try('ZRANGE', key, '-1', '-1', 'WITHSCORES')
  if type(markers) ~= 'number' or newest.err then
    return nil
  end
  local newest_ms = tonumber(newest[2] or 0)
  local oldest = call('ZRANGE', key, '0', '0', 'WITHSCORES')
  local age_ms = markers > 0 and oldest[2] and now_ms - oldest[2] or 0
  if newest_ms <= now_ms and now_ms - newest_ms < math.max(EVERY_MS, age_ms / PART) then
    return nil
  end
  return markers, newest_ms
end

-- Brings event.marks up to date: pushes a mark while markers wait. Returns `pushed`, `noted` or
-- `kept`; or `denied` and a command that the user may not use.
local function push()
  local key, list, now_ms = P .. K.event_marks, P .. K.objects_with_events, M.time.now_ms()
  local markers, newest_ms = due(now_ms)
  if not markers then
    return 'kept'
  end
  -- A mark in event.marks that is not among the markers would never be met.
  for _, command in ipairs({ { 'ZADD', key, '0', 'm' }, { 'ZREM', key, 'm' }, { 'LPUSH', list, 'v' } }) do
    if not redis.acl_check_cmd(unpack(command)) then
      return 'denied', command[1]
    end
  end
  local marks, now_text = call('ZRANGE', key, '0', MARKS_MAX, 'WITHSCORES'), string.format('%.0f', now_ms)
  if newest_ms > now_ms then
    -- The clock has stepped back. All times move back by about that step.
    for i = 1, #marks, 2 do
      call('ZADD', key, string.format('%.0f', marks[i + 1] - newest_ms + now_ms), marks[i])
    end
    return 'noted'
  elseif markers == 0 then
    -- Every marker that comes later is younger than this moment.
    for i = 1, #marks, 2 do
      call('ZREM', key, marks[i])
    end
    call('ZADD', key, now_text, MET)
    return 'noted'
  elseif #marks > 2 * MARKS_MAX then
    return 'kept'
  end
  call('ZADD', key, now_text, now_text)
  call('LPUSH', list, '\0t' .. now_text)
  return 'pushed'
end

-- Returns whether `push` would change anything.
local function is_due()
  return due(M.time.now_ms()) ~= nil
end

return { MET = MET, is_mark = is_mark, met = met, is_due = is_due, push = push }
