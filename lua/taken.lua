-- taken: reads the objects in the lists of the slots of some worker names.
--
-- Purpose   Shows which slots have taken which objects. Writes nothing.
-- Keys      KEYS[1] event.workers (hash): only routes the call
--           event.worker:NAME:lease (string), event.worker:W:object (list): read
-- Arguments prefix
--           object ('': all objects)
--           then pairs: a worker name; the number of its slots to read (0 to 1024). A call names
--           about 1,024 slots in total
-- Replies   {'taken', number of these names that have a lease, {worker, object, worker, object,
--           …}}, at most 1,000 objects of a worker
-- Keeps     writes nothing
-- Cost      2 commands per name and 1 key per slot. For a name that has objects, also 1 command per
--           slot, or 2 for all objects
local object = ARGV[2]
local NAMES_MAX = 1000

local alive, taken = 0, {}
for at = 3, #ARGV, 2 do
  local worker_name, lists, workers = ARGV[at], {}, {}
  for slot = 0, tonumber(ARGV[at + 1]) - 1 do
    workers[slot + 1] = rare.worker.id(worker_name, slot)
    lists[slot + 1] = P .. K.WORKER .. workers[slot + 1] .. K.worker_object
  end
  alive = alive + redis_call('EXISTS', P .. K.WORKER .. worker_name .. K.worker_lease)
  if #lists > 0 and redis_call('EXISTS', unpack(lists)) > 0 then
    for n, list in ipairs(lists) do
      local found = {}
      if object ~= '' then
        -- For one object, one short command per slot is enough. A key of another type has none.
        found = type(redis_try('LPOS', list, object, 'MAXLEN', NAMES_MAX)) == 'number' and {object} or {}
      elseif redis_call('TYPE', list).ok == 'list' then
        found = redis_call('LRANGE', list, 0, NAMES_MAX - 1)
      end
      local had = {}
      for _, name in ipairs(found) do
        if not had[name] then
          had[name] = true
          taken[#taken + 1], taken[#taken + 2] = workers[n], name
        end
      end
    end
  end
end
return {'taken', alive, taken}
