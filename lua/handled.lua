-- handled: stores what handlers have finished of an event in hand, or returns what is stored.
--
-- Purpose   A handler that has finished must not run again for the same event, after another
--           handler has failed or the process has died. The handler's emits are stored in the same
--           step as its success; the step that ends the event pushes them. A repeated call changes
--           nothing. If OBJ:event.handled has the progress of another event, this call replaces it,
--           with two exceptions: the other event comes later in the same batch, or it has emits
--           that are not pushed yet.
-- Keys      KEYS[1] event.worker:NAME:lease (string, read)
--           event.workers (hash), event.worker:W:event.id (string), event.worker:W:event (list),
--           OBJ:event.worker (string): read
--           OBJ:event.handled (hash): read and write
-- Arguments prefix
--           name
--           token (UUID)
--           slot
--           object
--           tag of its batch
--           to read the stored progress: nothing more. To store progress: the id of an event of the
--           batch, and then fields with values (1 to 1000 pairs):
--             handler:ID 1     the handler has finished
--             once:SUBTASK VALUE  the subtask has finished; VALUE is `=` and the JSON text that it has
--                              returned, at most 64 KiB (earlier versions: 1)
--             unknown:MS 1     a process first met the event at this time, and did not know it
--             emit:ID VALUE    the emits of the handler (values/emits.lua); the call fails if Redis is
--                              out of memory
--             result:ID VALUE  the result of the handler (values/emits.lua), at most 64 KiB
-- Replies   {'kept', field, value, …}: a call that reads returns all fields of the hash, but only
--           `EVENTS BYTES` of `emit:ID`, and only the number of bytes of `result:ID`. A call that
--           stores returns no field
--           {'other'}: the slot has another batch or object, or a later event of the batch is being
--           delivered
--           {'unpushed', id}: the hash has progress of the event `id`, whose emits are not pushed
--           yet
--           {'lapsed'}
--           {'fenced', lease}
-- Keeps     I1 to I6: writes only OBJ:event.handled
-- Cost      about 6 commands. Reads all fields of the hash; handlers write at most 1,000 fields
--           `once:SUBTASK` for one event, and at most 2 MiB of values, emits and results together
local name, token, slot, object, tag, id = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local FIELDS = 8

local refused = rare.fence.check(name, token)
if refused then
  return refused
end
local w = rare.worker.id(name, slot)
local at, handled = P .. K.WORKER .. w, P .. object .. K.event_handled
local found = redis_call('MGET', P .. object .. K.event_worker, at .. K.worker_event_id)
if found[1] ~= w or rare.tag.split(found[2] or '') ~= tag then
  return { 'other' }
end
if not id then
  -- Builds the reply in a loop, because unpack is limited to some thousands of values.
  local reply = { 'kept' }
  for i, text in ipairs(redis_call('HGETALL', handled)) do
    local of_emit, of_result = i % 2 == 0 and rare.emits.is_emit(reply[i]), i % 2 == 0 and rare.emits.is_result(reply[i])
    reply[i + 1] = of_emit and rare.emits.size_of(text) or of_result and ids.text(#text) or text
  end
  return reply
end

local kept = redis_call('HGET', handled, 'id')
if kept ~= id then
  local first, later = ids.parse((rare.tag.numbers(tag))), kept and ids.parse(kept) or 0
  if later > ids.parse(id) and later < ids.after(first, redis_call('LLEN', at .. K.worker_event)) then
    return { 'other' }
  end
  for _, field in ipairs(redis_call('HGETALL', handled)) do
    if rare.emits.is_emit(field) then
      return { 'unpushed', kept or '' }
    end
  end
  redis_call('DEL', handled)
end
redis_call('HSET', handled, 'id', id, unpack(ARGV, FIELDS))
return { 'kept' }
