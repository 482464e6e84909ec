-- release_many: an operator makes those held objects due soon that meet conditions.
--
-- Purpose   As release, for many objects in one step: wakes a worker, leaves the numbers of each
--           batch as they are. The due times of the objects are spread evenly over a time, so that
--           their events do not reach the receiver all at once. An object that is due before the
--           end of this time, that is paused, or that does not meet the conditions stays as it is.
--           So repeating a call changes nothing. The calls of one action share one record.
-- Keys      KEYS[1] objects.held (zset, read and write)
--           objects.paused (zset), OBJ:events.held.id (string): read
--           operator.actions (stream, read and write), objects.with.events (list): written
-- Arguments prefix
--           name of the operator (at most 1,000 bytes)
--           reason for the action (at most 1,000 bytes, may be '')
--           `all`, or `inf` for only those that wait for an operator
--           text that the reason for the hold must contain ('': any reason)
--           the record that the calls share: the id that the call before has returned ('' in the
--           first call), a blank, and the prefix of the names of the objects with `*`, or `*`
--           the time over which the due times are spread, ms; 0: all objects are due now
--           objects (1 to 100)
-- Replies   {'released', id of the record or '', word…}, a word for each object: released | due |
--           other | paused | not_held
--             due    the object is due already, or before the end of the time
--             other  the object does not meet the conditions
--           {'denied', command}
--           {'wrong_type', key, its type}
-- Keeps     I2
-- Cost      about 4 commands per object, and 4 more. About 2 ms with 100 objects and reasons of 2
--           KB
local which, text, record, over_ms = ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7])
local FIRST = 8
local TEXT_BYTES_MAX = 1000

local no = rare.actions.refused(KEYS[1], 'zset', P .. K.objects_paused, 'zset')
if no then
  return no
end
local now_ms = rare.time.now_ms()

-- Makes one object due after this part of the time. Returns its word of the reply.
local function release(object, part)
  if redis_call('ZSCORE', P .. K.objects_paused, object) then
    return 'paused'
  end
  local due = redis_call('ZSCORE', KEYS[1], object)
  if not due then
    return 'not_held'
  elseif which == 'inf' and due ~= 'inf' then
    return 'other'
  end
  local held_id = redis_call('MGET', P .. object .. K.events_held_id)[1] or ''
  local held_why = rare.tag.held_why(held_id) or ''
  if text ~= '' and not string.find(held_why, text, 1, true) then
    return 'other'
  elseif due ~= 'inf' and tonumber(due) <= now_ms + over_ms then
    return 'due'
  end
  redis_call('ZADD', KEYS[1], over_ms == 0 and '0' or now_ms + math.floor(over_ms * part), object)
  return 'released'
end

local words, count, first, last = {}, 0, nil, nil
for i = FIRST, #ARGV do
  local word = release(ARGV[i], (i - FIRST) / (#ARGV - FIRST + 1))
  if word == 'released' then
    count, first, last = count + 1, first or ARGV[i], ARGV[i]
  end
  words[#words + 1] = word
end
if count > 0 then
  -- This wakes a worker that waits for markers.
  redis_call('RPUSH', P .. K.objects_with_events, '')
end
local conditions = {}
if which == 'inf' then
  conditions = { 'until_released', '1' }
end
if text ~= '' then
  conditions[#conditions + 1], conditions[#conditions + 2] = 'held_why', rare.text.beginning(text, TEXT_BYTES_MAX)
end
local row = rare.actions.note_many(record, 'release', count, first, last, unpack(conditions))
return { 'released', row, unpack(words) }
