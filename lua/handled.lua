-- handled: keeps what handlers have finished of an event in a slot's hands, until that event is
-- committed; and tells what is kept.
--
-- Purpose   A handler that has finished does not run again where the event does: after a failure of
--           another one, or a death. What it has emitted is kept with it, and pushed where the
--           event ends. Repeating a call changes nothing. What is kept of another event is written
--           over, but not by one that comes before it in the same batch, and not where something of
--           it is still to be pushed.
-- Keys      KEYS[1] event.worker:NAME:lease (string, read); event.workers (hash, read),
--           event.worker:W:event.id (string, read), event.worker:W:event (list, read),
--           OBJ:event.worker (string, read), OBJ:event.handled (hash, read and write)
-- Arguments prefix; name; token (UUID); slot; object; tag of its batch; then nothing, to be told
--           what is kept, or the id of an event of the batch and what is finished, fields and
--           values (1 to 1000 pairs): `handler:ID` and `once:SUBTASK` to `1`, and with a handler
--           that has emitted `emit:ID` (lib/emits.lua), for which Redis must have memory; with a
--           handler that has a result `result:ID` (lib/emits.lua), at most 64 KiB
-- Replies   {'kept', field, value, …}: all of the hash where nothing is to be written, but of
--           `emit:ID` only how many events, and their bytes, and of `result:ID` only its bytes;
--           else no field
--           | {'other'}: the slot has another batch, one of another object, or a later event is
--             being delivered
--           | {'unpushed', id}: of that event something is still to be pushed
--           | {'lapsed'} | {'fenced', lease}
-- Keeps     I1 to I6: touches nothing else
-- Cost      about 6 commands; reads all fields of the hash, of which handlers write at most 1,000
--           `once:SUBTASK` for one event
-- Uses: emits.is_emit emits.is_result fence.check ids.after ids.parse tag.numbers
local name, token, slot, object, tag, id = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local FIELDS = 8

local refused = M.fence.check(name, token)
if refused then
  return refused
end
local w = name .. '.' .. slot
local at, handled = P .. K.WORKER .. w, P .. object .. K.event_handled
local found = call('MGET', P .. object .. K.event_worker, at .. K.worker_event_id)
if found[1] ~= w or found[2] ~= tag then
  return { 'other' }
end
if not id then
  -- Not by unpack, which takes some thousands and no more.
  local reply = { 'kept' }
  for i, text in ipairs(call('HGETALL', handled)) do
    local of_emit, of_result = i % 2 == 0 and M.emits.is_emit(reply[i]), i % 2 == 0 and M.emits.is_result(reply[i])
    reply[i + 1] = of_emit and (string.match(text, '^%d+ (%d+ %d+) ') or '') or of_result and string.format('%d', #text) or text
  end
  return reply
end

local kept = call('HGET', handled, 'id')
if kept ~= id then
  local first, later = M.ids.parse((M.tag.numbers(tag))), kept and M.ids.parse(kept) or 0
  if later > M.ids.parse(id) and later < M.ids.after(first, call('LLEN', at .. K.worker_event)) then
    return { 'other' }
  end
  for _, field in ipairs(call('HGETALL', handled)) do
    if M.emits.is_emit(field) then
      return { 'unpushed', kept or '' }
    end
  end
  call('DEL', handled)
end
call('HSET', handled, 'id', id, unpack(ARGV, FIELDS))
return { 'kept' }
