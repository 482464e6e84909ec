-- attach: a worker process takes its name.
--
-- Purpose   Writes a new token into the lease. Every unfinished batch of the name stays in its
--           slot, and advance gives it out again, with the same ids and the same prev. Three kinds
--           of objects are held: objects of slots that this process does not run, and objects with
--           a suspect for which the process has no room, both due now; and objects whose event has
--           reached the limit of crashes, for an operator. If another process has the lease, the
--           call changes nothing.
-- Keys      KEYS[1] event.worker:NAME:lease (string, read and write)
--           event.workers (hash), event.workers.watched, event.workers.departed (zsets): written
--           objects.with.events (list), objects.held (zset): read and write
--           event.worker:W:* of every slot, OBJ:event.worker, OBJ:events.held, OBJ:events.held.id:
--           read and write
-- Arguments prefix
--           name
--           token (UUID)
--           holder (`host pid start LEASEms`)
--           lease (ms)
--           slots (1 to 1024)
--           lease that this call may replace ('': none)
--           former token of this process ('': it has none, or its lease lapsed because the process
--           stood still; such a lapse counts as a crash)
--           crashes after which an event waits for an operator (0: never)
--           room for suspects (values/suspects.lua)
-- Replies   {'attached', batches kept, objects held, names moved back to the markers, {name, what, …}}
--             name, what: an object that is held for an operator because of its crashes; or a lost
--             key of a slot: an object that is held for an operator because of it, a list that has
--             the name of its object again, or a batch whose object is not known, or which another
--             slot has. At most 64
--           {'in_use', lease, time left (ms)}
-- Keeps     I1 to I4, I6
-- Cost      O(slots). If the name has no registration, 2 commands more, with 1,024 keys each, and if
--           these find something, up to 2,048 with one key
local name, token, holder, lease_ms = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local slots, displace, before, crashes_max = tonumber(ARGV[6]), ARGV[7], ARGV[8], tonumber(ARGV[9])
local _, admits, taken = rare.suspects.of(ARGV[10])

local lease = redis_call('GET', KEYS[1])
local repeated = lease and rare.lease.is_of(lease, token)
if lease and not repeated and lease ~= displace then
  return { 'in_use', lease, rare.lease.cut(KEYS[1], rare.lease.length_ms(lease)) }
end
local slots_all, last_token = rare.slots.known(name, slots)
rare.slots.check_types(name, slots_all)

local now_ms = rare.time.now_ms()
redis_call('SET', KEYS[1], rare.lease.text(token, holder), 'PX', lease_ms)
rare.registry.register(name, slots_all, token, now_ms)
rare.registry.watch(name, now_ms)

-- Each unfinished batch counts one crash, because the process that had it has died. In two cases it
-- counts no crash. Either this process itself had the batch before its lease lapsed. Or this call
-- repeats an earlier call, even if the lease of the earlier call has lapsed since. If the registration
-- is lost, nothing is known of a process that came after the caller's session before.
local died = not repeated and last_token ~= before and last_token ~= token and (last_token ~= nil or before == '')
local cause = { now_ms = now_ms, why = 'slots', died = died, crashes_max = crashes_max }
local kept, held = 0, 0
local strays, lost = rare.slots.each(name, slots_all, function(at, slot, object, tag)
  local first, handouts, attempts, crashes = rare.tag.numbers(tag or '0')
  crashes = crashes + (tag and died and 1 or 0)
  local has_lost_tag = not tag and redis_call('EXISTS', at .. K.worker_event) == 1
  if has_lost_tag or slot >= slots or tag and (died and rare.slots.is_used_up(crashes, crashes_max) or not admits(crashes)) then
    held = held + 1
    return rare.slots.hold_owned(at, object, tag, cause)
  elseif tag then
    if died then
      redis_call('SET', at .. K.worker_event_id, rare.tag.stored(rare.tag.text(first, handouts, attempts, crashes), object))
    end
    taken(crashes)
    kept = kept + 1
  end
end)
return { 'attached', kept, held, strays, lost }
