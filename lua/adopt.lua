-- adopt: any worker process takes over what names without a lease have.
--
-- Purpose   Holds, due now, the objects that slots of a name without a lease own, with one crash more for a batch in flight, and returns other names
--           they had taken to the markers. Such a name stays registered and is looked at again and again, because a pop of a paused or departed
--           process may still move a marker; it is forgotten a day after its last sign of life if it has nothing.
-- Keys      KEYS[1] event.workers (hash, read and write); event.worker:NAME:lease (string, read), objects.with.events (list),
--           objects.held (zset), event.worker:W:* of every slot, OBJ:event.worker, OBJ:events.held, OBJ:events.held.id (read and write)
-- Arguments prefix; own name (left alone); cursor ('0' = from the start); names to look at, about; crashes before an event is held for an
--           operator; ms after which an empty name is forgotten
-- Replies   {'swept', next cursor, objects held, names returned, name…}: the names from which something was taken.
--           The cursor comes back unchanged where the call ended early because a name had much.
-- Keeps     I1 to I4
-- Cost      O(names looked at + slots of names that have something)
local own, cursor, count = ARGV[2], ARGV[3], ARGV[4]
local crashes_max, forget_ms = tonumber(ARGV[5]), tonumber(ARGV[6])

local now_ms = now()
local found = redis.call('HSCAN', KEYS[1], cursor, 'COUNT', count)
local reply = { 'swept', found[1], 0, 0 }

local function has_something(name, slots)
  local keys = {}
  for slot = 0, slots - 1 do
    keys[#keys + 1] = P .. WORKER .. name .. '.' .. slot .. worker_object
    keys[#keys + 1] = P .. WORKER .. name .. '.' .. slot .. worker_event
  end
  return #keys > 0 and redis.call('EXISTS', unpack(keys)) > 0
end

for i = 1, #found[2], 2 do
  local name = found[2][i]
  if name ~= own and redis.call('EXISTS', P .. WORKER .. name .. worker_lease) == 0 then
    local slots, token, at_ms = registered(name)
    -- A name whose own keys have a wrong type is left to `seriatim check` and must not keep the others from being taken over.
    local is_empty = not has_something(name, slots)
    if not is_empty and pcall(check_types, name, slots) then
      local held = 0
      local strays = each_slot(name, slots, function(at, slot, object, tag)
        hold_owned(at, object, tag, now_ms, 'takeover', true, crashes_max)
        held = held + 1
      end)
      register(name, slots, token, now_ms)
      reply[3] = reply[3] + held
      reply[4] = reply[4] + strays
      reply[#reply + 1] = name
      if reply[3] + reply[4] >= 1024 then
        reply[2] = cursor
        break
      end
    elseif is_empty and token and now_ms - at_ms > forget_ms then
      redis.call('HDEL', KEYS[1], name)
    end
  end
end
return reply
