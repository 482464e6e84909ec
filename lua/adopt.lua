-- adopt: any worker process takes over the objects of names without a lease.
--
-- Purpose   Holds, due now, the objects that slots of a name without a lease own. A batch in flight
--           counts one crash more. All other names in the lists of these slots go back to the
--           markers. Each worker name has a due time. The first process that calls after this time
--           looks at the name.
--             watched   a name with a lease, or with something in its slots
--             departed  a name with neither. A pop of its process may still move a marker. So the
--                       name is looked at 1 s, 10 s, 1 min, 10 min and 1 h after its last sign of
--                       life, and once more when it is forgotten. If a look finds something in its
--                       slots, the call takes that over, and the looks start again. A random
--                       name whose process has detached is forgotten after ten minutes
--           Watched names come first. Departed names are looked at in rounds: at most one round per
--           second over all processes, each with a bound of keys. One half of a round takes the
--           names that fell due last, the other half the names that fell due first. So old names,
--           however many, do not delay the looks at new names.
--           A pass over event.workers finds names in neither set, which an older version
--           registered, and makes them departed. A pass starts an hour after the end of the pass
--           before, and takes one step per round.
--           Before all that, the call moves times back if Redis' clock has stepped back
--           (values/clock.lua). If a lease ends later than its own length allows, the call cuts it to
--           that length.
-- Keys      KEYS[1] event.workers (hash, read and write)
--           event.workers.watched, event.workers.departed (zsets, read and write)
--           seriatim.meta (hash, read and write): names.next, names.cursor, names.indexed, clock,
--           clock.step, clock.ahead, clock.gained, groups.lost
--           event.rules, events.cron.last (hashes), events.cron.next (zset): read and write
--           event.marks (zset, read)
--           event.groups (zset), event.group:GROUP:waiting (lists), event.groups.times and
--           event.shares (hashes), event.shares.summary (string): read; event.groups.waiting
--           (string): read and written
--           event.worker:NAME:lease (string, read; its time to live written)
--           objects.with.events (list), objects.held (zset): read and write
--           event.worker:W:* of every slot, OBJ:event.worker, OBJ:events.held, OBJ:events.held.id:
--           read and write
-- Arguments prefix
--           the caller's own name: its objects are not taken over
--           crashes after which an event waits for an operator (0: never)
--           time to the next look at a watched name (ms)
--           time after which a departed name is forgotten (ms)
--           time since the caller's sweep before this one (ms; '': there was none)
--           time within which a process with the caller's settings notices the end of its lease
--           (ms)
-- Replies   {'swept', more 0|1, objects held, names moved back to the markers, moved, ahead 0|1,
--           mark 0|1, {name, what, …}, name…}
--             more   watched names are still due, or times are still to be moved
--             moved  held objects whose due times the call has moved back
--             ahead  leases of live processes may have ended; nothing is taken over
--             mark   a mark is due (lua/mark.lua)
--             name, what  as in the reply of attach
--             name   a name from which something was taken over
-- Keeps     I1 to I4
-- Cost      about 12 commands
--           3 per watched name with a lease, at most 512 names
--           names without a lease: 2 keys per slot, at most 1,024 keys and one name more; the holds
--           of 256 objects and batches without an object, and of one slot more
--           once per second: 4 commands and 1 key per slot for departed names, at most 6,144 keys
--           and two names more; 2 commands per name of the pass, at most 256
--           after the clock has stepped back, some calls only move times: those of all rules, or of
--           1,000 held objects, cron jobs or departed names
--           once per second, while names are grouped: 1 per group, at most 2,049
--           after the list of a group was lost: 2 per second, until 1,000 held objects at a time were
--           made due that had been grouped
local own, crashes_max, look_ms = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local forget_ms, since_ms, notice_ms = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

local NAMES_MAX, KEYS_MAX, THINGS_MAX, SLOTS_MAX = 256, 1024, 256, rare.slots.SLOTS_MAX
local ROUND_MS, ROUND_KEYS, PASS_MS, PASS_NAMES = 1000, 6144, 3600000, 256
-- The cost of a look at a name, in keys, without the keys of its slots.
local NAME_KEYS = 24
-- The most texts about lost keys in the reply. The most held objects that one round makes due.
local LOST_MAX, DUE_MAX = 128, 1000

rare.registry.check_types()
local meta_key, watched, departed = P .. K.meta, P .. K.event_workers_watched, P .. K.event_workers_departed
local state = redis_call('HMGET', meta_key, 'names.next', 'names.cursor', 'names.indexed', 'clock', 'clock.step', 'clock.ahead', 'groups.lost')
local now_ms = rare.time.now_ms()
local reply, things, keys_left = { 'swept', 0, 0, 0, 0, 0, 0, {} }, 0, KEYS_MAX

-- Returns whether the time `text` is less than `ms` away from now. A written time may also be ahead
-- of now, because the clock may have stepped back.
local function is_within(text, ms)
  return text and math.abs(now_ms - (tonumber(text) or 0)) < ms
end

-- The time that a sweep wrote last. A sweep writes the time at most once a second. So this time is
-- at most a second older than the caller's last sweep before this one.
local noted_ms = ids.parse(state[4] or '')
-- Whether the clock stepped ahead a short time ago. If so, no name is taken over for some seconds.
-- In this time live processes can notice that their leases have ended, and can attach again.
local is_ahead = is_within(state[6], math.max(rare.clock.AHEAD_MS, notice_ms + 2 * rare.clock.STEP_MS))
if not is_ahead and noted_ms and since_ms and now_ms - noted_ms > since_ms + 2 * rare.clock.STEP_MS then
  local gained_ms = now_ms - noted_ms - since_ms
  redis_call('HSET', meta_key, 'clock.ahead', string.format('%.0f', now_ms), 'clock.gained', string.format('%.0f', gained_ms))
  is_ahead = true
end
reply[6] = is_ahead and 1 or 0

-- The ends of the keys of slots, made once for all names of the call.
local object_of, event_of = {}, {}
local function key_endings(slots)
  for slot = #object_of, slots - 1 do
    local ending = rare.worker.ending(slot)
    object_of[slot + 1], event_of[slot + 1] = ending .. K.worker_object, ending .. K.worker_event
  end
end

-- Returns whether one of the slots' keys exists. `endings`: the ends of the keys of the slots'
-- lists, or of their batches.
local function any_of(name, slots, endings)
  local keys, at = {}, P .. K.WORKER .. name
  for slot = 1, slots do
    keys[slot] = at .. endings[slot]
  end
  keys_left = keys_left - slots
  return slots > 0 and redis_call('EXISTS', unpack(keys)) > 0
end

-- Removes the name from both sets.
local function drop(name)
  redis_call('ZREM', watched, name)
  redis_call('ZREM', departed, name)
end

local cause = { now_ms = now_ms, why = 'takeover', died = true, crashes_max = crashes_max }

-- Takes over the objects and names in the slots of a worker name. If a key of a slot has a wrong
-- type, leaves out this worker name, so that the other worker names are still taken over. `seriatim
-- check` reports the key.
local function take_over(name, slots, token)
  local held, strays, met, found_lost = 0, 0
  if pcall(rare.slots.check_types, name, slots) then
    local lost
    strays, lost, met = rare.slots.each(name, slots, function(at, slot, object, tag)
      held = held + 1
      return rare.slots.hold_owned(at, object, tag, cause)
    end, THINGS_MAX - things)
    for _, text in ipairs(lost) do
      reply[8][#reply[8] + 1] = #reply[8] < LOST_MAX and text or nil
    end
    found_lost = lost[1]
  end
  if held + strays == 0 and not found_lost then
    return rare.registry.watch(name, now_ms + 10 * look_ms)
  end
  things = things + met
  reply[3], reply[4], reply[#reply + 1] = reply[3] + held, reply[4] + strays, name
  rare.registry.register(name, slots, token or '-', now_ms)
  rare.registry.watch(name, now_ms)
end

-- Returns whether the name has a lease, and cuts the lease to its length.
local function is_leased(name)
  local key = P .. K.WORKER .. name .. K.worker_lease
  local lease = redis_call('MGET', key)[1]
  if not lease then
    -- A key of a wrong type must not stop the sweep. It counts as a lease, and `check` reports it.
    return redis_call('EXISTS', key) == 1
  end
  rare.lease.cut(key, rare.lease.length_ms(lease))
  return true
end

-- Looks at a name of the set with the key `set`. A departed name had nothing in its slots at the
-- look before. Since then only a pop can have moved the name of an object into a list. So only the
-- last look at a departed name also looks at the batches.
local function look(name, set)
  if is_leased(name) then
    return rare.registry.watch(name, now_ms + look_ms)
  elseif name == own then
    return
  end
  local slots, token, at_ms = rare.registry.find(name)
  if not token and not redis_call('HGET', KEYS[1], name) then
    -- The registration is lost: no name is in a set without one. Any slot may have something.
    slots, at_ms = SLOTS_MAX, set == watched and now_ms or 0
  end
  slots, keys_left = math.min(slots, SLOTS_MAX), keys_left - NAME_KEYS
  key_endings(slots)
  if token and at_ms > now_ms + ROUND_MS then
    -- The time was written before the clock stepped back.
    at_ms = now_ms
    rare.registry.register(name, slots, token, at_ms)
  end
  local ends_ms = token and rare.registry.forget_after(token, forget_ms) or forget_ms
  local is_over = now_ms - at_ms > ends_ms
  if any_of(name, slots, object_of) or (is_over or set == watched) and any_of(name, slots, event_of) then
    if is_ahead then
      return rare.registry.watch(name, now_ms + look_ms)
    end
    return take_over(name, slots, token)
  elseif token and is_over then
    redis_call('HDEL', KEYS[1], name)
    return drop(name)
  elseif token then
    return rare.registry.depart(name, at_ms, now_ms, ends_ms)
  elseif redis_call('HGET', KEYS[1], name) then
    -- The registration is invalid: `seriatim check` reports it. This call only sets the time of the
    -- next look.
    return rare.registry.depart(name, now_ms, now_ms + PASS_MS, forget_ms)
  end
  drop(name)
end

-- Looks at watched names that are due. Returns whether more are due.
local function look_at_watched()
  local due = redis_call('ZRANGE', watched, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, NAMES_MAX)
  local more = #due == NAMES_MAX
  -- Every process writes times that are earlier than `far_ms`. So a name with a later time got it
  -- before the clock stepped back, and this call looks at the name, too.
  local far_ms = now_ms + 10 * look_ms + ROUND_MS
  for _, name in ipairs(redis_call('ZRANGE', watched, 'inf', '(' .. far_ms, 'BYSCORE', 'REV', 'LIMIT', 0, NAMES_MAX)) do
    due[#due + 1] = name
  end
  for _, name in ipairs(due) do
    if keys_left <= 0 or things >= THINGS_MAX then
      return true
    end
    look(name, watched)
  end
  -- A name of which only a part was taken over is still due.
  return more or things >= THINGS_MAX
end

-- Takes one step of the pass over all registered names.
local function index(cursor)
  local found = redis_call('HSCAN', KEYS[1], cursor, 'COUNT', PASS_NAMES)
  for i = 1, #found[2], 2 do
    local name = found[2][i]
    if not redis_call('ZSCORE', watched, name) and not redis_call('ZSCORE', departed, name) then
      -- The score is the name's last sign of life. So the name is due at once. Of these names,
      -- those with the most recent sign of life are looked at first.
      local _, _, at_ms = rare.registry.parse(found[2][i + 1])
      redis_call('ZADD', departed, math.min(at_ms, now_ms), name)
    end
  end
  if found[1] == '0' then
    redis_call('HDEL', meta_key, 'names.cursor')
    redis_call('HSET', meta_key, 'names.indexed', string.format('%.0f', now_ms))
  else
    redis_call('HSET', meta_key, 'names.cursor', found[1])
  end
end

-- Looks at these departed names, until `keys` keys are looked at.
local function look_at_departed(due, keys)
  keys_left = keys
  for _, name in ipairs(due) do
    if keys_left <= 0 or things >= THINGS_MAX then
      return
    end
    look(name, departed)
  end
end

-- Adds a text about a lost key to the reply.
local function tell(key, what)
  reply[8][#reply[8] + 1] = key
  reply[8][#reply[8] + 1] = what
end

-- Returns the number of names in the lists of all groups, without marks, and at least 1; nil if there
-- are more groups than workers make, or none.
local function count_names()
  local all, names = redis_try('ZRANGE', P .. K.event_groups, '0', rare.group.LISTS_MAX + 1), 0
  if not all[1] or #all > rare.group.LISTS_MAX + 1 then
    return nil
  end
  local times = redis_try('HMGET', P .. K.event_groups_times, unpack(all))
  for g, group in ipairs(all) do
    local length, parts = redis_try('LLEN', rare.group.key(group)), rare.group.times_of(times[g] or nil)
    -- If the list was lost, its marks may still be counted.
    names = names + math.max((type(length) == 'number' and length or 0) - (parts and parts.marks or 0), 0)
  end
  -- A call without names deletes the keys of groups.
  return math.max(names, 1)
end

-- Makes held objects due whose names had been grouped when the list of a group was lost, some of
-- them in each round, those first that have waited longest. It is not known which of these names were
-- in that list. The others are then grouped a second time, which changes nothing. `range`: the scores
-- of the objects that are left.
local function make_due(range)
  local from, to = string.match(range, '^(%S+) (%S+)$')
  local found = redis_try('ZRANGE', P .. K.objects_held, from or '0', to or '0', 'BYSCORE', 'REV', 'LIMIT', '0', DUE_MAX, 'WITHSCORES')
  local due = {}
  for k = 1, #found, 2 do
    due[k], due[k + 1] = string.sub(found[k + 1], 2), found[k]
  end
  if due[1] then
    redis_call('ZADD', P .. K.objects_held, 'XX', unpack(due))
  end
  if #due == 2 * DUE_MAX then
    redis_call('HSET', meta_key, 'groups.lost', '(' .. found[#found] .. ' ' .. to)
  else
    redis_call('HDEL', meta_key, 'groups.lost')
  end
end

-- Counts the names that are grouped again, if the number is lost. Without the number no worker would
-- take these names. If the lists have fewer names than that, a list is lost.
local function look_at_groups()
  local stored = redis_try('GET', P .. K.event_groups_waiting)
  local names = type(stored) ~= 'table' and count_names() or nil
  local known = names and stored and ids.parse(stored)
  if names and not stored then
    redis_call('SET', P .. K.event_groups_waiting, string.format('%.0f', names))
    tell(K.event_groups_waiting, 'mended: the number of names that are grouped was absent')
  elseif known and known > names then
    redis_call('SET', P .. K.event_groups_waiting, string.format('%.0f', names))
    tell(K.event_groups_waiting, string.format('mended: the list of a group has lost %.0f names; held objects whose names were grouped are due again', known - names))
    state[7] = string.format('(0 -%.0f', now_ms)
  end
  if state[7] then
    make_due(state[7])
  end
end

-- Puts the number of grouped names right. Tells if the summary of the shares is lost.
local function look_at_pairs()
  look_at_groups()
  if redis_call('EXISTS', P .. K.event_shares) == 1 and redis_call('EXISTS', P .. K.event_shares_summary) == 0 then
    tell(K.event_shares_summary, 'lost: it is absent, so no share is kept; set any share again')
  end
end

-- Takes a round of looks at departed names, and a step of the pass.
local function round()
  look_at_pairs()
  local cursor = state[2] or not is_within(state[3], PASS_MS) and '0'
  if cursor then
    -- Redis refuses a text that is no cursor, and then each sweep would fail.
    index(#cursor < 20 and string.match(cursor, '^%d+$') or '0')
  end
  local most = math.floor(ROUND_KEYS / NAME_KEYS / 2)
  look_at_departed(redis_call('ZRANGE', departed, now_ms, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, most), ROUND_KEYS / 2)
  look_at_departed(redis_call('ZRANGE', departed, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, most), ROUND_KEYS / 2)
end

local moved, moves_on = rare.clock.follow(state[4], state[5], now_ms)
if moves_on then
  reply[2], reply[5] = 1, moved
  return reply
end
reply[2] = look_at_watched() and 1 or 0
-- A time of the next round that is more than one round ahead was written before the clock stepped
-- back. Then the next round begins now.
local is_round = not state[1] or (tonumber(state[1]) or 0) <= now_ms or not is_within(state[1], ROUND_MS + 1)
if reply[2] == 0 and things == 0 and is_round then
  redis_call('HSET', meta_key, 'names.next', string.format('%.0f', now_ms + ROUND_MS))
  round()
end
reply[7] = rare.marks.is_due() and 1 or 0
return reply
