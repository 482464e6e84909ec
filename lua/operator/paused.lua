-- paused: a page of the objects that rules hold, by name, each with the rules that are over it;
-- writes nothing.
--
-- Keys      KEYS[1] objects.paused (zset, read); event.rules (hash, read); OBJ:event.worker,
--           OBJ:events.held.id (strings, read), OBJ:events.held (list, read)
-- Arguments prefix; the object behind which the page begins ('' = from the start); objects in the
--           page (1 to 250)
-- Replies   {'paused', ms since 1970, {field, value, …} of every rule that is over one of them,
--             {object, owner or '', numbers and why or '', events in the batch, field of a rule
--             over it, blocks first, …}…}
-- Keeps     none is touched
-- Cost      about 4 commands for each
-- Uses: rules.fields_of time.now_ms
local after, count = ARGV[2], ARGV[3]

local has_rules = call('TYPE', P .. K.event_rules).ok == 'hash'
local told, all_rules = {}, {}

-- Appends the fields of the rules over the object; their values are told once for all.
local function add_rules(entry, object)
  local fields = M.rules.fields_of(object)
  for at, value in ipairs(call('HMGET', P .. K.event_rules, unpack(fields))) do
    if value then
      entry[#entry + 1] = fields[at]
      if not told[fields[at]] then
        told[fields[at]] = true
        all_rules[#all_rules + 1], all_rules[#all_rules + 2] = fields[at], value
      end
    end
  end
end

local now_ms = string.format('%.0f', M.time.now_ms())
local reply = { 'paused', now_ms, all_rules }
local page = call('ZRANGE', KEYS[1], after == '' and '-' or '(' .. after, '+', 'BYLEX', 'LIMIT', '0', count)
for _, object in ipairs(page) do
  local at = P .. object
  local found = call('MGET', at .. K.event_worker, at .. K.events_held_id)
  local batch = at .. K.events_held
  local len = call('TYPE', batch).ok == 'list' and call('LLEN', batch) or 0
  local entry = { object, found[1] or '', found[2] or '', len }
  if has_rules then
    add_rules(entry, object)
  end
  reply[#reply + 1] = entry
end
return reply
