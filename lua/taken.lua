-- taken: the objects that the slots of some worker names have in their lists; writes nothing.
--
-- KEYS
--   1  event.workers   hash, read. It also routes the call; every other key is spelled from the prefix.
-- ARGV
--   1  prefix          what every key begins with, may be empty
--   2  object          only this one; '' = all
--   3… twos of         a worker name, and how many slots of it to look at, 0 to 1024: in total about 1024
-- Replies
--   {'taken', names with a lease, {worker, object, worker, object, …}}: at most 1000 objects of a worker
-- Invariants: none are touched.
-- Cost: 2 commands for each name, one key for each slot; of a name that has something 2 commands for each slot.
local object = ARGV[2]
local NAMES_MAX = 1000

local alive, taken = 0, {}
for at = 3, #ARGV, 2 do
  local base, lists, workers = P .. K.WORKER .. ARGV[at], {}, {}
  for slot = 0, tonumber(ARGV[at + 1]) - 1 do
    workers[slot + 1] = ARGV[at] .. '.' .. slot
    lists[slot + 1] = base .. '.' .. slot .. K.worker_object
  end
  alive = alive + call('EXISTS', base .. K.worker_lease)
  if #lists > 0 and call('EXISTS', unpack(lists)) > 0 then
    for n, list in ipairs(lists) do
      local found = call('TYPE', list).ok == 'list' and call('LRANGE', list, 0, NAMES_MAX - 1) or {}
      local had = {}
      for _, name in ipairs(found) do
        if (object == '' or name == object) and not had[name] then
          had[name] = true
          taken[#taken + 1], taken[#taken + 2] = workers[n], name
        end
      end
    end
  end
end
return {'taken', alive, taken}
