-- release_many: an operator makes held objects due at once, those of a page that meet the
-- conditions.
--
-- Purpose   As release, for many objects and in one step: a worker is woken, the numbers of each
--           object stay what they are, and each release is kept. An object that is due already,
--           that waits for a rule, or that does not meet the conditions stays as it is. Repeating a
--           call changes nothing: an object that was released is due.
-- Keys      KEYS[1] objects.held (zset, read and write); objects.paused (zset, read);
--           operator.actions (stream, written); objects.with.events (list, written);
--           OBJ:events.held.id (string, read)
-- Arguments prefix; who; why; `all`, or `inf`: only those that wait for an operator; a text that
--           why the object is held must contain ('' = any); objects (1 to 100)
-- Replies   {'released', word…}, a word for each object: released | due | other | paused | not_held
--           | {'denied', command} | {'wrong_type', key, its type}
-- Keeps     I2
-- Cost      about 5 commands for each object, and 1; with 100 objects held for reasons of 2 KB
--           about 2 ms
-- Uses: actions.note actions.refused tag.held_numbers time.now_ms
local which, text = ARGV[4], ARGV[5]

local no = M.actions.refused(KEYS[1], 'zset', P .. K.objects_paused, 'zset')
if no then
  return no
end
local now_ms = M.time.now_ms()

local function release(object)
  if call('ZSCORE', P .. K.objects_paused, object) then
    return 'paused'
  end
  local due = call('ZSCORE', KEYS[1], object)
  if not due then
    return 'not_held'
  elseif which == 'inf' and due ~= 'inf' then
    return 'other'
  end
  local held_id = call('MGET', P .. object .. K.events_held_id)[1] or ''
  local id, _, _, _, why_at = M.tag.held_numbers(held_id)
  local held_why = id and string.sub(held_id, why_at)
  if text ~= '' and not string.find(held_why or '', text, 1, true) then
    return 'other'
  elseif due ~= 'inf' and tonumber(due) <= now_ms then
    return 'due'
  end
  call('ZADD', KEYS[1], '0', object)
  M.actions.note('release', object, id or '', 'error', held_why or '')
  return 'released'
end

local reply, is_any = { 'released' }, false
for i = 6, #ARGV do
  local word = release(ARGV[i])
  is_any = is_any or word == 'released'
  reply[#reply + 1] = word
end
if is_any then
  -- For a worker that waits for markers.
  call('RPUSH', P .. K.objects_with_events, '')
end
return reply
