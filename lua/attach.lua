-- attach: a worker process takes its name.
--
-- Purpose   Writes a new token and keeps every unfinished batch of the name's slots where it is:
--           advance hands it out again, with the same ids and the same prev. Objects of slots that
--           this start does not run are held, due now, and suspects for which it has no room. A
--           name in use is refused.
-- Keys      KEYS[1] event.worker:NAME:lease (string, read and write); event.workers (hash),
--           event.workers.watched and event.workers.departed (zsets, written), objects.with.events
--           (list), objects.held (zset), event.worker:W:* of every slot, OBJ:event.worker,
--           OBJ:events.held, OBJ:events.held.id (read and write)
-- Arguments prefix; name; token (UUID); holder ("host pid start LEASEms"); lease (ms); slots (1 to
--           1024); lease to displace ('' = none); the token this process had before ('' = none, or
--           it let its lease go because it stood still: a crash); crashes before an event is held
--           for an operator (0: never, whoever gets it settles it); room for suspects
--           (lib/suspects.lua)
-- Replies   {'attached', batches kept, objects held, names returned} | {'in_use', lease, ms left}
-- Keeps     I1 to I4, I6
-- Cost      O(slots)
-- Uses: slots.check_types slots.each slots.hold_owned slots.is_used_up slots.register
-- Uses: slots.registered slots.watch suspects.of tag.numbers tag.text time.now_ms
local name, token, holder, lease_ms = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local slots, displace, before, crashes_max = tonumber(ARGV[6]), ARGV[7], ARGV[8], tonumber(ARGV[9])
local _, admits, taken = M.suspects.of(ARGV[10])

local lease = call('GET', KEYS[1])
local repeated = lease and string.sub(lease, 1, #token) == token
if lease and not repeated and lease ~= displace then
  -- Redis keeps the end of a lease, not its length: behind a step of the clock it may end an hour
  -- late.
  local left_ms, length_ms = call('PTTL', KEYS[1]), tonumber(string.match(lease, ' (%d+)ms$'))
  if length_ms and left_ms > length_ms then
    call('PEXPIRE', KEYS[1], length_ms)
    left_ms = length_ms
  end
  return { 'in_use', lease, left_ms }
end
local slots_before, last_token = M.slots.registered(name)
local slots_all = math.max(slots, slots_before)
M.slots.check_types(name, slots_all)

local now_ms = M.time.now_ms()
call('SET', KEYS[1], token .. ' ' .. holder, 'PX', lease_ms)
M.slots.register(name, slots_all, token, now_ms)
M.slots.watch(name, now_ms)

-- An unfinished batch tells of a death, unless this process itself had it (its lease lapsed) or
-- this call was made before, and be it that its own lease lapsed since.
local died = not repeated and last_token ~= before and last_token ~= token
local kept, held = 0, 0
local strays = M.slots.each(name, slots_all, function(at, slot, object, tag)
  local first, handouts, attempts, crashes = M.tag.numbers(tag or '0')
  crashes = crashes + (tag and died and 1 or 0)
  if slot >= slots or tag and (died and M.slots.is_used_up(crashes, crashes_max) or not admits(crashes)) then
    M.slots.hold_owned(at, object, tag, now_ms, 'slots', died, crashes_max)
    held = held + 1
  elseif tag then
    if died then
      call('SET', at .. K.worker_event_id, M.tag.text(first, handouts, attempts, crashes))
    end
    taken(crashes)
    kept = kept + 1
  end
end)
return { 'attached', kept, held, strays }
