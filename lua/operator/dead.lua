-- dead: an operator retries or drops dead letters.
--
-- Purpose   retry: pushes the event again as a new one with a marker, as an emit does, behind all
--           other events of its object; deletes the dead letter. drop: deletes the dead letter.
--           Records each action; the record of a drop has the first 8 KiB of the event. Only the
--           calls of an action on all dead letters share one record, without events. A call ends
--           after 1 MiB of events, and the caller names the other dead letters in its next call.
--           Repeating a call changes nothing: an absent dead letter is skipped.
-- Keys      KEYS[1] events.dead (stream, read and write)
--           operator.actions (stream, read and write), objects.with.events, OBJ:events (lists):
--           written; OBJ:last.event.id (string): read
-- Arguments prefix
--           name of the operator (at most 1,000 bytes)
--           reason for the action (at most 1,000 bytes, may be '')
--           retry | drop
--           the record that the calls share: the id that the call before has returned ('' in the
--           first call), a blank, and the name of the object of the dead letters, or `*`. '' for a
--           record of each dead letter. It is one argument: before a login, Redis refuses a command
--           of more than 10 words with an error that does not mention the login
--           ids of dead letters (1 to 32)
-- Replies   {'settled', id of the record or '', word…}: a word for each dead letter, in order, up to
--           the end of the call
--             retried
--             retried_late  retried, and newer events of the object were delivered since
--             dropped
--             gone        there is no such dead letter
--             unreadable  the dead letter has no object or no event; or there is no namespace, and
--                         the object's name begins with a brace
--             wrong_type  the object's queue is no list; the dead letter stays
--           {'denied', command}
--           {'wrong_type', key, its type}
-- Keeps     I1, I4, I7
-- Cost      about 6 commands per dead letter; reads 1 MiB of events and the rest of the last one
local step, record = ARGV[4], ARGV[5]

local no = rare.actions.refused(KEYS[1], 'stream')
if no then
  return no
end

-- The bytes of events after which a call ends. The event that reaches this number is the last one.
local BYTES_MAX, bytes_settled = 1048576, 0

-- Retries or drops one dead letter. Returns its word of the reply.
local function settle(dead_id)
  local entry = redis_call('XRANGE', KEYS[1], dead_id, dead_id)[1]
  if not entry then
    return 'gone'
  end
  local letter = {}
  for i = 1, #entry[2], 2 do
    letter[entry[2][i]] = entry[2][i + 1]
  end
  local object, id = letter.object or '', letter.id or ''
  bytes_settled = bytes_settled + #(letter.event or '')
  if step == 'drop' then
    redis_call('XDEL', KEYS[1], dead_id)
    if record == '' then
      rare.actions.note('drop', object, id, 'dead_id', dead_id, 'error', string.sub(letter.error or '', 1, rare.actions.EVENT_BYTES_MAX), rare.actions.event_fields(letter.event or ''))
    end
    return 'dropped'
  elseif object == '' or rare.names.is_foreign(object) or not letter.event then
    return 'unreadable'
  end
  local queue = P .. object .. K.events
  local found = redis_call('TYPE', queue).ok
  if found ~= 'list' and found ~= 'none' then
    return 'wrong_type'
  end
  redis_call('XDEL', KEYS[1], dead_id)
  redis_call('LPUSH', queue, letter.event)
  redis_call('LPUSH', P .. K.objects_with_events, object)
  if record == '' then
    rare.actions.note('retry', object, id, 'dead_id', dead_id)
  end
  -- MGET returns nil for a key of a wrong type, which says nothing about the events.
  local last, own = redis_call('MGET', P .. object .. K.last_event_id)[1], ids.parse(id)
  last = last and ids.parse(last)
  return own and last and last > own and 'retried_late' or 'retried'
end

local words, count, first, last = {}, 0, nil, nil
for i = 6, #ARGV do
  if bytes_settled >= BYTES_MAX then
    break
  end
  local word = settle(ARGV[i])
  if word == 'retried' or word == 'retried_late' or word == 'dropped' then
    count, first, last = count + 1, first or ARGV[i], ARGV[i]
  end
  words[#words + 1] = word
end
local row = record ~= '' and rare.actions.note_many(record, step, count, first, last) or ''
return { 'settled', row, unpack(words) }
