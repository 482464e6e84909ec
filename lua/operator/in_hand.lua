-- in_hand: counts objects in hand that slots had before workers counted them, and corrects the count.
--
-- Purpose   An operator who sets a share makes these calls after the step `count` of
--           operator/share.lua, until all slots and all counted objects were looked at. From then on
--           the objects in objects.in.hand are those that slots own.
-- Keys      KEYS[1] objects.in.hand (sorted set, read and write)
--           event.shares.summary (string): read
--           event.worker:W:object (lists) of the named slots: read
--           OBJ:event.worker (string) of the objects found: read
--           event.groups.blocked (sorted set): written
-- Arguments prefix
--           the reply to `count`
--           slots, then ids of workers, `NAME.SLOT` (at most 500)
--           | members, then '' or the last member of the page before; most members of a page
-- Replies   {'counted', last member of the page, or '' if there is no further page}
--           {'restart'}: objects in hand are not counted since the time that was given
-- Keeps     I1 to I9: changes no owner
-- Cost      3 commands per slot with an object, else 1; 2 per member
local epoch, step = ARGV[2], ARGV[3]
-- The most names that are read from the list of a slot. A late pop may have added names to the object
-- of the slot.
local NAMES_MAX = 16

if rare.shares.epoch_of(redis_call('GET', P .. K.event_shares_summary)) ~= epoch then
  return { 'restart' }
end

-- Returns the owner of an object; nil if it has none, or if the key has a wrong type.
local function owner_of(object)
  return redis_call('MGET', P .. object .. K.event_worker)[1]
end

if step == 'slots' then
  local found = {}
  for at = 4, #ARGV do
    local names = redis_try('LRANGE', P .. K.WORKER .. ARGV[at] .. K.worker_object, -NAMES_MAX, '-1')
    for _, object in ipairs(names.err and {} or names) do
      if not rare.names.is_foreign(object) and owner_of(object) == ARGV[at] then
        found[#found + 1], found[#found + 2] = '0', object .. ':'
      end
    end
  end
  if found[1] then
    redis_call('ZADD', KEYS[1], unpack(found))
  end
  return { 'counted', '' }
end
local page_max = tonumber(ARGV[5])
local members = redis_call('ZRANGE', KEYS[1], '(' .. ARGV[4], '+', 'BYLEX', 'LIMIT', '0', page_max)
for _, member in ipairs(members) do
  local object = string.sub(member, 1, -2)
  local owner = owner_of(object)
  if not owner or not rare.worker.parse(owner) then
    rare.shares.release(object)
  end
end
return { 'counted', #members == page_max and members[#members] or '' }
