-- held: reads a page of the held objects, by due time.
--
-- Purpose   Shows which objects are held, until when and why. Writes nothing.
-- Keys      KEYS[1] objects.held (zset, read)
--           OBJ:event.worker, OBJ:events.held.id (strings), OBJ:events.held (list): read
-- Arguments prefix
--           `all`, or `inf` for only those that wait for an operator
--           due time of the object before the page ('': from the start)
--           the object before the page ('': from the start)
--           objects in the page (1 to 250)
-- Replies   {'held', ms since 1970, {object, due time, owner or '', OBJ:events.held.id or '',
--           events in the batch}…}. An object whose due time changes between two pages may be
--           missing, or come twice. All others come once
-- Keeps     writes nothing
-- Cost      about 3 commands per object
-- Uses: ids.text time.now_ms
local which, due, object, count = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

local from = 0
if due ~= '' and call('ZSCORE', KEYS[1], object) == due then
  from = call('ZRANK', KEYS[1], object) + 1
elseif due ~= '' then
  from = call('ZCOUNT', KEYS[1], '-inf', '(' .. due)
elseif which == 'inf' then
  from = call('ZCOUNT', KEYS[1], '-inf', '(inf')
end
local reply = { 'held', M.ids.text(M.time.now_ms()) }
local page = call('ZRANGE', KEYS[1], from, from + count - 1, 'WITHSCORES')
for i = 1, #page, 2 do
  local at = P .. page[i]
  local found = call('MGET', at .. K.event_worker, at .. K.events_held_id)
  local batch = at .. K.events_held
  local len = call('TYPE', batch).ok == 'list' and call('LLEN', batch) or 0
  reply[#reply + 1] = { page[i], page[i + 1], found[1] or '', found[2] or '', len }
end
return reply
