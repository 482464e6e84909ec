-- adopt: any worker process takes over what names without a lease have.
--
-- Purpose   Holds, due now, the objects that slots of a name without a lease own, with one crash
--           more for a batch in flight, and returns other names they had taken to the markers. Each
--           name is looked at when it is due, by the process that comes first. A *watched* name has
--           a lease, or has something. A *departed* name has neither: a pop of its process may
--           still move a marker, so it is looked at 1 s, 10 s, 1 min, 10 min and 1 h after its last
--           sign of life, and a last time when it is forgotten. If it has something then, that is
--           taken over and the looks start again. Departed names are looked at in rounds, at most
--           one per second over all processes and with a bound of keys, and watched names first.
--           Half of a round takes the names that fell due last, half those that fell due first:
--           many old names do not delay the looks at new ones. A pass over event.workers puts names
--           into the sets that are in neither: those that an older version registered. It begins an
--           hour after the one before, and takes one step per round. Before all that the call
--           follows Redis' clock (lib/clock.lua). A lease that ends later than its own length
--           allows is cut to that length.
-- Keys      KEYS[1] event.workers (hash, read and write); event.workers.watched,
--           event.workers.departed (zsets, read and write), seriatim.meta (hash, read and write:
--           names.next, names.cursor, names.indexed, clock, clock.step, clock.ahead); event.rules
--           (hash, read and write); event.worker:NAME:lease (string, read, its time to live
--           written), objects.with.events (list), objects.held (zset), event.worker:W:* of every
--           slot, OBJ:event.worker, OBJ:events.held, OBJ:events.held.id (read and write)
-- Arguments prefix; own name (left alone); crashes before an event is held for an operator (0:
--           never, whoever gets it settles it); ms to the next look at a watched name; ms after
--           which a departed name is forgotten; ms since the caller made its sweep before this one,
--           '' = there was none; ms within which a process with the caller's settings notices that
--           its lease has ended
-- Replies   {'swept', more 0|1, objects held, names returned, held objects moved, ahead 0|1,
--           name…}: the names from which something was taken. `more`: watched names are still due,
--           or times are still to be moved. `ahead`: leases may have ended whose processes live;
--           nothing is taken over.
-- Keeps     I1 to I4
-- Cost      about 8 commands; 3 for each watched name with a lease, at most 512; for names without
--           a lease 2 keys per slot, at most 1,024 and one name, and what holding 256 objects
--           takes, or one slot more; in one call per second, 4 commands and 1 key per slot for
--           departed names, at most 6,144 keys and two names, and 2 commands for each of 256 names
--           of the pass. Behind a step of the clock calls that do nothing else: all rules are
--           rewritten, or 1,000 held objects or departed names are moved
-- Uses: clock.AHEAD_MS clock.STEP_MS clock.follow slots.check_registry slots.check_types
-- Uses: slots.depart slots.each slots.hold_owned slots.register slots.registered slots.watch
-- Uses: time.now_ms
local own, crashes_max, look_ms = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local forget_ms, since_ms, notice_ms = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

local NAMES_MAX, KEYS_MAX, THINGS_MAX, SLOTS_MAX = 256, 1024, 256, 1024
local ROUND_MS, ROUND_KEYS, PASS_MS, PASS_NAMES = 1000, 6144, 3600000, 256
-- A look at a name costs as much as so many keys more.
local NAME_KEYS = 24

M.slots.check_registry()
local meta_key, watched, departed = P .. K.meta, P .. K.event_workers_watched, P .. K.event_workers_departed
local state = call('HMGET', meta_key, 'names.next', 'names.cursor', 'names.indexed', 'clock', 'clock.step', 'clock.ahead')
local now_ms = M.time.now_ms()
local reply, things, keys_left = { 'swept', 0, 0, 0, 0, 0 }, 0, KEYS_MAX

-- Whether a time in ms that is written down lies within the last, or next, so many ms: a clock may
-- have stepped.
local function is_within(text, ms)
  return text and math.abs(now_ms - (tonumber(text) or 0)) < ms
end

-- Whether the clock has stepped ahead a moment ago. The time written down is at most a second older
-- than the sweep before this one of the caller.
local noted_ms = tonumber(state[4] or '')
-- The pause is long enough for the processes that live to notice, and to attach again.
local is_ahead = is_within(state[6], math.max(M.clock.AHEAD_MS, notice_ms + 2 * M.clock.STEP_MS))
if not is_ahead and noted_ms and since_ms and now_ms - noted_ms > since_ms + 2 * M.clock.STEP_MS then
  local gained_ms = now_ms - noted_ms - since_ms
  call('HSET', meta_key, 'clock.ahead', string.format('%.0f', now_ms), 'clock.gained', string.format('%.0f', gained_ms))
  is_ahead = true
end
reply[6] = is_ahead and 1 or 0

-- Made once for all names of the call.
local object_of, event_of = {}, {}
local function key_endings(slots)
  for slot = #object_of, slots - 1 do
    object_of[slot + 1], event_of[slot + 1] = '.' .. slot .. K.worker_object, '.' .. slot .. K.worker_event
  end
end

-- Whether any of the slots' keys is there; `endings` are of their lists, or of their batches.
local function any_of(name, slots, endings)
  local keys, at = {}, P .. K.WORKER .. name
  for slot = 1, slots do
    keys[slot] = at .. endings[slot]
  end
  keys_left = keys_left - slots
  return slots > 0 and call('EXISTS', unpack(keys)) > 0
end

local function drop(name)
  call('ZREM', watched, name)
  call('ZREM', departed, name)
end

-- A name whose own keys have a wrong type is left to `seriatim check` and must not keep the others
-- from being taken over.
local function take_over(name, slots, token)
  local held, strays = 0, 0
  if pcall(M.slots.check_types, name, slots) then
    strays = M.slots.each(name, slots, function(at, slot, object, tag)
      M.slots.hold_owned(at, object, tag, now_ms, 'takeover', true, crashes_max)
      held = held + 1
    end, THINGS_MAX - things)
  end
  if held + strays == 0 then
    return M.slots.watch(name, now_ms + 10 * look_ms)
  end
  things = things + held + strays
  reply[3], reply[4], reply[#reply + 1] = reply[3] + held, reply[4] + strays, name
  M.slots.register(name, slots, token, now_ms)
  M.slots.watch(name, now_ms)
end

-- Whether the name has a lease. Redis keeps the end of a lease, not its length: behind a step of
-- the clock it may end an hour late.
local function is_leased(name)
  local key = P .. K.WORKER .. name .. K.worker_lease
  local lease = call('GET', key)
  if not lease then
    return false
  end
  local lease_ms = tonumber(string.match(lease, ' (%d+)ms$'))
  if lease_ms and call('PTTL', key) > lease_ms then
    call('PEXPIRE', key, lease_ms)
  end
  return true
end

-- `had` says that the name had nothing when it was looked at before: only a pop can have moved
-- something since, into a list.
local function look(name, had_nothing)
  if is_leased(name) then
    return M.slots.watch(name, now_ms + look_ms)
  elseif name == own then
    return
  end
  local slots, token, at_ms = M.slots.registered(name)
  slots, keys_left = math.min(slots, SLOTS_MAX), keys_left - NAME_KEYS
  key_endings(slots)
  if token and at_ms > now_ms + ROUND_MS then
    -- Written before the clock stepped back.
    at_ms = now_ms
    M.slots.register(name, slots, token, at_ms)
  end
  local is_over = now_ms - at_ms > forget_ms
  if any_of(name, slots, object_of) or (is_over or not had_nothing) and any_of(name, slots, event_of) then
    if is_ahead then
      return M.slots.watch(name, now_ms + look_ms)
    end
    return take_over(name, slots, token)
  elseif token and is_over then
    call('HDEL', KEYS[1], name)
    return drop(name)
  elseif token then
    return M.slots.depart(name, at_ms, now_ms, forget_ms)
  elseif call('HGET', KEYS[1], name) then
    -- What nobody can read is left to `seriatim check`.
    return M.slots.depart(name, now_ms, now_ms + PASS_MS, forget_ms)
  end
  drop(name)
end

local function look_at_watched()
  local due = call('ZRANGE', watched, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, NAMES_MAX)
  local more = #due == NAMES_MAX
  -- Nobody writes a time as far ahead as these have.
  local far_ms = now_ms + 10 * look_ms + ROUND_MS
  for _, name in ipairs(call('ZRANGE', watched, 'inf', '(' .. far_ms, 'BYSCORE', 'REV', 'LIMIT', 0, NAMES_MAX)) do
    due[#due + 1] = name
  end
  for _, name in ipairs(due) do
    if keys_left <= 0 or things >= THINGS_MAX then
      return true
    end
    look(name, false)
  end
  return more or #due > 2 * NAMES_MAX - 1
end

-- One step of the pass over all registered names.
local function index(cursor)
  local found = call('HSCAN', KEYS[1], cursor, 'COUNT', PASS_NAMES)
  for i = 1, #found[2], 2 do
    local name = found[2][i]
    if not call('ZSCORE', watched, name) and not call('ZSCORE', departed, name) then
      -- Due at once, and the sooner looked at the later its last sign of life was.
      local at_ms = tonumber(string.match(found[2][i + 1], ' (%d+)$')) or 0
      call('ZADD', departed, math.min(at_ms, now_ms), name)
    end
  end
  if found[1] == '0' then
    call('HDEL', meta_key, 'names.cursor')
    call('HSET', meta_key, 'names.indexed', string.format('%.0f', now_ms))
  else
    call('HSET', meta_key, 'names.cursor', found[1])
  end
end

local function look_at_departed(due, keys)
  keys_left = keys
  for _, name in ipairs(due) do
    if keys_left <= 0 or things >= THINGS_MAX then
      return
    end
    look(name, true)
  end
end

local function round()
  local cursor = state[2] or not is_within(state[3], PASS_MS) and '0'
  if cursor then
    index(cursor)
  end
  local most = math.floor(ROUND_KEYS / NAME_KEYS / 2)
  look_at_departed(call('ZRANGE', departed, now_ms, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, most), ROUND_KEYS / 2)
  look_at_departed(call('ZRANGE', departed, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, most), ROUND_KEYS / 2)
end

local moved, moves_on = M.clock.follow(state[4], state[5], now_ms)
if moved > 0 or moves_on then
  reply[2], reply[5] = 1, moved
  return reply
end
reply[2] = look_at_watched() and 1 or 0
-- A time further ahead than a round is one of a clock that has stepped back.
local is_round = not state[1] or (tonumber(state[1]) or 0) <= now_ms or not is_within(state[1], ROUND_MS + 1)
if reply[2] == 0 and things == 0 and is_round then
  call('HSET', meta_key, 'names.next', string.format('%.0f', now_ms + ROUND_MS))
  round()
end
return reply
