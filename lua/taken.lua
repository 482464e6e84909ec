-- taken: the objects in the lists of the slots of some worker names.
--
-- Keys      KEYS[1] event.workers (hash, read); it also routes the call. All other keys are spelled
--           from the prefix, and read.
-- Arguments prefix; an object ('': all objects); then in pairs: a worker name; how many of its
--           slots to look at (0 to 1024). The caller names about 1,024 slots in total
-- Replies   {'taken', names with a lease, {worker, object, worker, object, …}}, at most 1,000
--           objects of a worker
-- Keeps     writes nothing
-- Cost      2 commands per name and one key per slot; 2 commands per slot of a name that has
--           objects
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
