-- scheduled: reads a page of the schedules, of all objects by due time or of one object.
--
-- Purpose   Shows which events are due when. Writes nothing.
-- Keys      KEYS[1] events.scheduled (zset, read)
--           OBJ:events.scheduled (hashes, read)
-- Arguments prefix
--           `all`, or `object`
--           of `all`: the first and the last due time (ms; `-inf`, `+inf`); the due time and the
--           member before the page ('': from the start); schedules in the page (1 to 100)
--           of `object`: its name; the cursor of HSCAN; about the number of schedules in the page
--           (1 to 100)
-- Replies   {'scheduled', ms since 1970, next cursor ('0': the end; '' of `all`), {member, due time
--           or '', bytes of the event (-1: none), event or '', 1: its event is queued, 0: not
--           yet}…}. `all` leaves out schedules whose event is queued. An event above 8 KiB is not
--           shown. A schedule whose due time changes between two pages may be missing, or come
--           twice
-- Keeps     writes nothing
-- Cost      about 3 commands per schedule; of `all` also 2 of O(log n). Of `object` at most 1 MiB
--           of events are read, and one bucket of the hash more. If the object has few schedules,
--           HSCAN returns all of them at once, at most 128
local EVENT_BYTES_MAX = 8192
local reply = { 'scheduled', ids.text(rare.time.now_ms()), '' }

-- Adds a schedule to the reply.
local function tell(member, score, hash, key)
  local due, is_queued = '', false
  if score then
    due, is_queued = rare.schedules.due_of(score)
  end
  local bytes = hash and redis_call('HEXISTS', hash, key) == 1 and redis_call('HSTRLEN', hash, key) or -1
  local event = bytes >= 0 and bytes <= EVENT_BYTES_MAX and redis_call('HGET', hash, key) or ''
  reply[#reply + 1] = { member, due, bytes, event, is_queued and 1 or 0 }
end

if ARGV[2] == 'object' then
  local object = ARGV[3]
  local hash = P .. object .. K.events_scheduled_of
  local keys, cursor = rare.schedules.scan(hash, ARGV[4], tonumber(ARGV[5]))
  reply[3] = cursor
  for _, key in ipairs(keys) do
    local member = rare.schedules.member(object, key)
    tell(member, redis_call('ZSCORE', KEYS[1], member), hash, key)
  end
  return reply
end

local first, last, due, before, count = ARGV[3], ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7])
local from = redis_call('ZCOUNT', KEYS[1], '-inf', first == '-inf' and string.sub(rare.schedules.FIRST_DUE, 2) or '(' .. first)
if due ~= '' and redis_call('ZSCORE', KEYS[1], before) == due then
  from = redis_call('ZRANK', KEYS[1], before) + 1
elseif due ~= '' then
  from = redis_call('ZCOUNT', KEYS[1], '-inf', '(' .. due)
end
local page = redis_call('ZRANGE', KEYS[1], from, from + count - 1, 'WITHSCORES')
for i = 1, #page, 2 do
  if last ~= '+inf' and tonumber(page[i + 1]) > tonumber(last) then
    break
  end
  local object, key = rare.schedules.parse(page[i])
  -- The keys of a name of another namespace are not read.
  object = object and not rare.names.is_foreign(object) and object
  tell(page[i], page[i + 1], object and P .. object .. K.events_scheduled_of, key)
end
return reply
