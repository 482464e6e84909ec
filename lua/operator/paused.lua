-- paused: reads a page of the paused objects, by name, each with the rules that apply to it.
--
-- Purpose   Shows which objects are paused, and why. Writes nothing.
-- Keys      KEYS[1] objects.paused (zset, read)
--           event.rules (hash), OBJ:event.worker, OBJ:events.held.id (strings), OBJ:events.held
--           (list): read
-- Arguments prefix
--           start and end of the names, as in ZRANGE BYLEX
--           objects in the page (1 to 250)
-- Replies   {'paused', ms since 1970, {field, value, …}, entry…}
--             field, value  every rule that applies to one of the objects
--             entry         {object, owner or '', OBJ:events.held.id or '', events in the batch,
--                            field of a rule that applies to the object, …}, blocks first
-- Keeps     writes nothing
-- Cost      about 4 commands per object
local from, to, count = ARGV[2], ARGV[3], ARGV[4]

local has_rules = redis_call('TYPE', P .. K.event_rules).ok == 'hash'
local seen, all_rules = {}, {}

-- Adds the fields of the rules that apply to the object to its entry. The reply has the value of
-- each rule once.
local function add_rules(entry, object)
  local fields = rare.rules.fields_of(object)
  for at, value in ipairs(redis_call('HMGET', P .. K.event_rules, unpack(fields))) do
    if value then
      entry[#entry + 1] = fields[at]
      if not seen[fields[at]] then
        seen[fields[at]] = true
        all_rules[#all_rules + 1], all_rules[#all_rules + 2] = fields[at], value
      end
    end
  end
end

local now_ms = ids.text(rare.time.now_ms())
local reply = { 'paused', now_ms, all_rules }
local page = redis_call('ZRANGE', KEYS[1], from, to, 'BYLEX', 'LIMIT', '0', count)
for _, object in ipairs(page) do
  local at = P .. object
  local found = redis_call('MGET', at .. K.event_worker, at .. K.events_held_id)
  local batch = at .. K.events_held
  local len = redis_call('TYPE', batch).ok == 'list' and redis_call('LLEN', batch) or 0
  local entry = { object, found[1] or '', found[2] or '', len }
  if has_rules then
    add_rules(entry, object)
  end
  reply[#reply + 1] = entry
end
return reply
