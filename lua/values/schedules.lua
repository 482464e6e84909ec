-- schedules: the entries of events.scheduled, and references to their events in queues.
--
-- events.scheduled  a member is `OBJECT LF KEY`; a key has no line feed. The score is the due time
--                   in ms. Once the event of a key that a user has chosen is queued, the score is
--                   -10^15 minus the time of queueing, in µs
-- OBJ:events        a reference, `NUL queued US KEY`, stands for the event of this key while it is
--                   queued. US is the time of queueing. A reference counts only if the score of its
--                   schedule has the same time of queueing

-- The bytes of events after which a scan stops. A scan reads events, too, because HSCAN returns
-- each key with its event.
local SCAN_BYTES, AT_ONCE = 1048576, '1'
local QUEUED, QUEUED_MIN = -1000000000000000, -9007199254740991

-- Returns the object and the key of a member; nothing if it has no line feed.
local function parse(member)
  return string.match(member, '^(.*)\n([^\n]*)$')
end

-- Returns the member of a schedule.
local function member(object, key)
  return object .. '\n' .. key
end

-- Reads about `count` keys of a hash of schedules, from a cursor of HSCAN on. Returns the keys, and
-- the next cursor ('0': the end).
local function scan(hash, cursor, count)
  local keys, bytes = {}, 0
  repeat
    local found = redis_call('HSCAN', hash, cursor, 'COUNT', AT_ONCE)
    cursor = found[1]
    for i = 1, #found[2], 2 do
      keys[#keys + 1], bytes = found[2][i], bytes + #found[2][i + 1]
    end
  until cursor == '0' or #keys >= count or bytes >= SCAN_BYTES
  return keys, cursor
end

-- Returns whether a user has chosen the key. With any other key, the event itself is queued, not a
-- reference.
local function is_chosen(key)
  return string.byte(key) ~= 45
end

-- Returns the score, as text, and the reference of a schedule whose event is queued at this time.
local function queued(now_us, key)
  return string.format('%.0f', QUEUED - now_us), string.format('\0queued %.0f ', now_us) .. key
end

-- Returns the time, as text, and the key of a reference; nil if the text is an event, not a
-- reference.
local function referred(text)
  return string.match(text, '^%zqueued (%d+) (.*)$')
end

-- Returns whether a reference with this time counts. `score`: the score of its schedule.
local function counts(score, time_us)
  return score and tonumber(score) == QUEUED - tonumber(time_us)
end

-- Returns the due time of a schedule, as text, and false. If its event is queued, returns the time
-- of queueing (ms) instead, and true.
local function due_of(score)
  local number = tonumber(score) or 0
  if number <= QUEUED and number >= QUEUED_MIN then
    return string.format('%.0f', math.floor((QUEUED - number) / 1000)), true
  end
  return score, false
end

return {
  FIRST_DUE = '(-1000000000000000', parse = parse, member = member, scan = scan, is_chosen = is_chosen, queued = queued,
  referred = referred, counts = counts, due_of = due_of,
}
