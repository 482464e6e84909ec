-- held: reads a page of the held objects, by due time.
--
-- Purpose   Shows which objects are held, until when and why. Writes nothing.
-- Keys      KEYS[1] objects.held (zset, read)
--           OBJ:event.worker, OBJ:events.held.id (strings), OBJ:events.held (list): read
-- Arguments prefix
--           `all`, or `inf` for only those that wait for an operator, `timed` for all others, `due`
--           for those that are due now
--           due time of the object before the page ('': from the start)
--           the object before the page ('': from the start)
--           objects in the page (1 to 250)
--           beginning of the names ('': all names). Other objects are left out
-- Replies   {'held', ms since 1970, objects looked at, the last of them, its due time, {object, due
--           time, owner or '', OBJ:events.held.id or '', events in the batch}…}. The last object
--           and its due time are '' if there are no more objects to look at. The due time of an
--           object that is grouped is below 0. An object whose due time changes
--           between two pages may be missing, or come twice. All others come once
-- Keeps     writes nothing
-- Cost      1 command per object in the page, and 4 per 500 names. To look at 1,000 names takes
--           about 0.2 ms
local which, due, object, count = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local beginning = ARGV[6]
-- The most objects that one call looks at.
local LOOKED_MAX = 5000
-- The most names in one read. A page may be full after the first of them.
local NAMES_PER_READ = 500

-- If an object is grouped, its score is its due time below 0. These objects come
-- first in the list, in the order of their due times. So their places are in reverse order.
local grouped, total = redis_call('ZCOUNT', KEYS[1], '-inf', '(0'), redis_call('ZCARD', KEYS[1])

local now_ms = ids.text(rare.time.now_ms())
local from = 0
if due ~= '' and redis_call('ZSCORE', KEYS[1], object) == due then
  local rank = redis_call('ZRANK', KEYS[1], object)
  from = rank < grouped and grouped - rank or rank + 1
elseif string.sub(due, 1, 1) == '-' then
  from = redis_call('ZCOUNT', KEYS[1], '(' .. due, '(0')
elseif due ~= '' then
  from = redis_call('ZCOUNT', KEYS[1], '-inf', '(' .. due)
elseif which == 'inf' then
  from = redis_call('ZCOUNT', KEYS[1], '-inf', '(inf')
end
-- The highest due time that the page may have, and the number of objects to look at.
local to = which == 'due' and now_ms or which == 'timed' and '(inf' or 'inf'
local left = redis_call('ZCOUNT', KEYS[1], '-inf', to) - from
local stop = math.max(left - LOOKED_MAX, 0)

-- Returns up to `most` names from the place `from` on.
local function names_from(most)
  if from >= grouped then
    return redis_call('ZRANGE', KEYS[1], from, from + most - 1)
  end
  local first = total - grouped + from
  return redis_call('ZRANGE', KEYS[1], first, math.min(first + most, total) - 1, 'REV')
end

local reply, looked, last = { 'held', now_ms, 0, '', '' }, 0, nil

-- Adds the entries of these objects to the reply.
local function add(names)
  local keys = {}
  for _, name in ipairs(names) do
    keys[#keys + 1] = P .. name .. K.event_worker
    keys[#keys + 1] = P .. name .. K.events_held_id
  end
  local found = #keys > 0 and redis_call('MGET', unpack(keys)) or {}
  local dues = #keys > 0 and redis_call('ZMSCORE', KEYS[1], unpack(names)) or {}
  for n, name in ipairs(names) do
    -- A batch of a wrong type has no length. `check` reports it.
    local len = redis_try('LLEN', P .. name .. K.events_held)
    local owner, held_id = found[2 * n - 1] or '', found[2 * n] or ''
    reply[#reply + 1] = { name, dues[n], owner, held_id, tonumber(len) or 0 }
  end
end

while left > stop and #reply - 5 < count do
  local wanted, matched = count - (#reply - 5), {}
  for _, name in ipairs(names_from(math.min(left - stop, NAMES_PER_READ))) do
    looked, left, from, last = looked + 1, left - 1, from + 1, name
    if string.sub(name, 1, #beginning) == beginning then
      matched[#matched + 1] = name
      if #matched == wanted then
        break
      end
    end
  end
  add(matched)
end
reply[3] = looked
if last and left > 0 then
  reply[4], reply[5] = last, redis_call('ZSCORE', KEYS[1], last)
end
return reply
