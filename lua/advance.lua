-- advance: commit and claim, for any number of slots in one call.
--
-- Purpose   Commits the results of batches in flight, gives the same slots more events of their
--           objects, and gives free slots other objects. Pauses objects that a rule names, and
--           wakes objects whose rules were lifted or have ended; both in bounded steps. A repeated
--           call changes nothing: a result of another batch than the one in flight is ignored, and
--           a slot that still has a batch gets that batch again. The usual path stands at the top,
--           in lua/advance/usual.lua. The modules in lua/advance/ do everything else.
-- Keys      KEYS[1] event.worker:NAME:lease (string, read)
--           next.event.id (string), objects.with.events (list), objects.held and objects.paused
--           (zsets): read and written
--           event.workers and event.rules (hashes): read
--           events.dead (stream): written; event.log (stream): written and trimmed
--           event.worker:W:* of the named slots, and of the objects that they have or get
--           OBJ:events, OBJ:last.event.id, OBJ:event.worker, OBJ:events.held, OBJ:events.held.id:
--           read and written
--           OBJ:event.handled (hash): read and deleted; OBJ:event.errors (list): written
--           OBJ:events of the objects for which handlers emitted (lists): written
-- Arguments prefix; name; token (UUID); events per batch (1 to 1000); bytes per batch; bytes per
--           reply; slots that may claim (0 to 1024); markers looked at (1 to 4096); where to claim
--           first: held | markers; ms after which the last id of a released object is forgotten (0:
--           never); highest id that the caller has seen (0: none); room for suspects
--           (lib/suspects.lua)
--           with the event log on: `log`; rows kept (about); ms that rows are kept (0: any age)
--           then per slot its number and a result; with the log on, each result is followed by the
--           age of its batch in ms:
--             free                   the caller knows of no batch
--             look                   the slot is busy; return a name that a pop moved to its list
--             handled                the slot's next result may end the event whose handler progress
--                                    is stored in OBJ:event.handled; if it does, the emits of its
--                                    handlers are pushed and the hash is deleted
--             done OBJECT TAG LAST   the whole batch is delivered; LAST is the id of its last event
--             yield OBJECT TAG LAST  the same, and other objects get a turn
--             part OBJECT TAG LAST COUNT NEXT
--                                    the first COUNT events are delivered; the rest, now NEXT, stays
--                                    in hand
--             hold OBJECT TAG LAST COUNT DELAY_MS|inf HELD_ID
--                                    the first COUNT events are delivered; the rest is held. If its
--                                    attempts grew, the error is kept
--             reject OBJECT TAG LAST COUNT NEXT ID ERROR ATTEMPTS
--                                    the first COUNT events are delivered; the next one, ID, becomes
--                                    a dead letter
--             complete OBJECT TAG LAST COUNT NEXT ID ERROR ATTEMPTS
--                                    the same, but event ID is completed with errors: only the log
--                                    keeps it
--           TAG is the tag of the batch in flight, as the reply gave it. NEXT is the tag of the
--           rest ('': no rest). LAST is '' if COUNT is 0.
-- Replies   {'ok', ms to the next due time or end of a rule (-1: none), more 0|1, where to claim
--           first next time, {slot…}, {quarantined: object, why, …}}
--             slot = {number, object, tag, prev, event…}, oldest event first; an absent slot is
--             free
--             why = `quarantine: …`: the object is held for an operator; or `foreign: …`: the name
--             of an object without a namespace begins with a brace, so its marker is dropped and
--             its keys are not touched. At most 64 of these, each name cut at 512 bytes
--           | {'lapsed'} | {'fenced', lease}
--           | {'counter', value}: next.event.id is no number, or at its end
-- Keeps     I1 to I6
-- Cost      A call claims at most 512 objects and lets at most 256 go that cannot be claimed. It
--           takes at most 4,096 events, and one batch more than fits into the reply's bytes; the
--           first event of a batch counts as four. It pauses at most 256 objects, wakes 64, and
--           asks for 2,048 fields of rules; the last object may ask for 18 more. The caller bounds
--           the results, their rows in the log and the handler progress (src/wire/load.rs).
--           Commands: about 20 per call; 2 per claim; 2 or more per batch of more than one event; 1
--           per object that is looked up in the rules; 2 per due suspect without room. With the log
--           on: 1 per finalized event, 2 per batch, 3 per call. Per failed event 1 or 2, and 1 more
--           when it ends. Per slot with `handled` 1, plus 1 per event emitted and 2 per object.
-- Uses: aside.put aside.refused aside.wrong_of batch.put_back batch.take_more fence.refused
-- Uses: held.claim held.owned ids.MAX ids.after ids.parse ids.text jump.beyond log.trim
-- Uses: markers.next markers.trim pauses.pause pauses.wake popped.give_back popped.look
-- Uses: results.finish results.let_go results.name results.prepare results.settle time.now_ms
-- Fence.
if not lease or string.sub(lease, 1, #token) ~= token then
  return M.fence.refused(name, token, lease)
end

-- The counter. `connect` has written it: an absent one was evicted, and a lower one is from an
-- earlier state of Redis.
local batch_max, highest = tonumber(args[4]), tonumber(args[11])
local counter_before = M.ids.parse(counter_text or '0')
local counter = counter_before
if counter and (not counter_text or counter < highest) then
  counter = M.jump.beyond(math.max(counter, highest))
end
if not counter or M.ids.after(counter, 1024 * batch_max) > M.ids.MAX then
  return { 'counter', counter_text or '0' }
end
-- All that rules cost where there is none.
if rules_next then
  call('ZCARD', P .. K.objects_paused)
end
local logs = args[SLOT_ARGS] == 'log'

-- The state of this call. Slots are counted from 1, as the call names them; what belongs to a slot
-- stands at its place in one of the lists.
C = {
  name = name, batch_max = batch_max, batch_bytes = tonumber(args[5]), forget_ms = tonumber(args[10]),
  logs = logs, log_keep = args[SLOT_ARGS + 1], log_keep_ms = tonumber(args[SLOT_ARGS + 2]),
  -- What the call may still do. Behind the last byte the reply counts as full.
  bytes_left = tonumber(args[6]), claims_left = tonumber(args[7]), markers_max = tonumber(args[8]), events_left = 4096, drops_left = 256,
  from = args[9], counter = counter, rules_next = rules_next, markers_left = markers,
  -- Markers at the tail that are used, and not trimmed yet.
  markers_used = 0,
  -- Whether a held object may be due.
  is_due = soonest[2] and soonest[2] ~= 'inf' and tonumber(soonest[2]) <= M.time.now_ms(),
  -- Whether objects.held may have changed in this call.
  held_changed = false,
  -- The reply: batches; objects that were put aside, with why; whether anything was done.
  entries = {}, quarantined = {}, progress = false,
  -- Writes that wait until all slots have come this far, so that one command does them for all of
  -- them. They cannot fail: neither command minds what type a key had. Who reads such a key writes
  -- them down first. What is set has no time to live: that comes after it.
  to_set = {}, to_delete = {}, to_expire = {},
  -- Objects that a slot has got in this call, and those that were put aside.
  claimed = {}, put_aside = {},
  -- Slots: number, what its keys begin with, result, where its arguments begin; whether it has a
  -- batch, of which object; the object it has left, but whose name is still in its list; the id
  -- before the events it gets next; what handlers have kept of its event.
  number = {}, base = {}, result = {}, arg = {}, busy = {}, object = {}, left = {}, prev = {}, untagged = {}, taken = {}, handled = {}, looks = {},
}
local number, base, result, arg, busy, slot_object, left, prev = C.number, C.base, C.result, C.arg, C.busy, C.object, C.left, C.prev
local to_set, to_delete, entries, untagged = C.to_set, C.to_delete, C.entries, C.untagged

-- What the call names: free slots, and those of which all is delivered. The module reads all
-- others.
local tag_keys, owner_base = {}, P .. K.WORKER .. name .. '.'
local n, at = 0, SLOT_ARGS + (logs and LOG_ARGS or 0)
while args[at] do
  local word = args[at + 1]
  if word == 'free' or word == 'done' then
    n = n + 1
    number[n], result[n], arg[n], base[n] = args[at], word, at + 2, owner_base .. args[at]
    tag_keys[n] = base[n] .. K.worker_event_id
    at = at + (word == 'free' and 2 or logs and 6 or 5)
  else
    n, at = M.results.name(at, n, tag_keys, owner_base)
  end
end

local function write_down()
  if to_delete[1] then
    call('DEL', unpack(to_delete))
    to_delete = {}
    C.to_delete = to_delete
  end
  if to_set[1] then
    call('MSET', unpack(to_set))
    to_set = {}
    C.to_set = to_set
  end
  for _, key in ipairs(C.to_expire) do
    call('PEXPIRE', key, C.forget_ms)
  end
  C.to_expire = C.to_expire[1] and {} or C.to_expire
end

-- Moves the first event of the object into the slot's empty batch. Returns the entry of the reply,
-- {number, object, tag, prev, event…}, still without tag; nil if there is no event; or nil and the
-- key, without prefix, whose wrong type is in the way.
local function take(i, object, before)
  local event = try('LMOVE', P .. object .. K.events, base[i] .. K.worker_event, 'RIGHT', 'LEFT')
  if type(event) ~= 'string' then
    return nil, event and M.aside.wrong_of(i, object, event)
  end
  C.bytes_left = C.bytes_left - #event
  -- It takes as long as four that come with others.
  C.events_left = C.events_left - 4
  if C.events_left <= 0 then
    C.bytes_left = math.min(C.bytes_left, 0)
  end
  busy[i], slot_object[i] = true, object
  return { number[i], object, '', before, event }
end

-- Gives the slot what it took, under new M.ids.
local function give(i, entry)
  local tag = M.ids.text(M.ids.after(C.counter, 1))
  C.counter = M.ids.after(C.counter, #entry - 4)
  local s = #to_set
  to_set[s + 1], to_set[s + 2] = tag_keys[i], tag
  entry[3] = tag
  entries[#entries + 1] = entry
  C.progress = true
end

-- The slot has nothing more of its object. The name stays in its list until the slot's next object
-- takes its place there, or the call ends: as the last of the list, for all that came later are
-- before it.
local function leave(i, object)
  to_delete[#to_delete + 1] = P .. object .. K.event_worker
  left[i] = object
  if C.forget_ms > 0 then
    C.to_expire[#C.to_expire + 1] = P .. object .. K.last_event_id
  end
end

-- Slots that have claimed an object and its first event: more of them, and ids, they get together.
local claimed, claimed_entries, claimed_queues = {}, {}, {}

-- Makes the slot the owner of `object` and takes its first event. Returns 'claimed', 'empty',
-- 'paused', or 'wrong'. `owner` and `last` are what the object's keys tell; `sound`: a key that
-- told nothing is not there; `named`: the slot's list has the name.
local function own(i, object, owner, last, sound, named)
  if C.rules_next and owner ~= 'held' and M.pauses.pause(i, object, last, named) then
    return 'paused'
  end
  local last_id = last and M.ids.parse(last)
  local owner_key = P .. object .. K.event_worker
  local usual = not last or last_id and last_id <= C.counter
  if usual and not sound and not (owner and last) then
    -- A key that told nothing, and yet is there, has a wrong type.
    local last_key = P .. object .. K.last_event_id
    usual = call('EXISTS', owner and last_key or owner_key, last and owner_key or last_key) == 0
  end
  local refused = not usual and M.aside.refused(i, object, owner, last, last_id)
  if refused then
    return refused
  end
  local entry, wrong = take(i, object, last or '0')
  if wrong then
    M.aside.put(i, object, wrong)
    return 'wrong'
  elseif not entry then
    return 'empty'
  end
  if not named then
    -- In the place of the one the slot has left.
    local list = base[i] .. K.worker_object
    local put = left[i] and try('LSET', list, '-1', object) or try('LPUSH', list, object)
    if type(put) == 'table' and put.err then
      M.batch.put_back(i, entry)
      error(put)
    end
    left[i] = nil
  end
  local s = #to_set
  to_set[s + 1], to_set[s + 2] = owner_key, name .. '.' .. number[i]
  if last and C.forget_ms > 0 then
    -- Set anew it has no time to live: it must not be forgotten while events that follow on it are
    -- in flight.
    to_set[s + 3], to_set[s + 4] = P .. object .. K.last_event_id, last
  end
  local c = #claimed + 1
  claimed[c], claimed_entries[c], claimed_queues[c] = i, entry, P .. object .. K.events
  C.claimed[object], C.claims_left, C.progress = i, C.claims_left - 1, true
  return 'claimed'
end

-- Takes in the results. The slots in `going` have nothing in hand any more, and go on with their
-- objects.
local function commit(going)
  local tags = n > 0 and call('MGET', unpack(tag_keys)) or {}
  for i = 1, n do
    local tag = tags[i]
    if tag and (result[i] == 'done' or result[i] == 'yield') and args[arg[i] + 1] == tag then
      -- More belongs to the end of an event that handlers have kept something of, that has failed,
      -- or that is logged.
      local is_odd = logs or C.handled[number[i]] or string.find(tag, ' ', 1, true)
      if not is_odd or M.results.prepare(i) then
        local object, last = args[arg[i]], args[arg[i] + 2]
        -- Batch and tag go together: if the call fails further on, the slot is one that has nothing
        -- yet.
        to_delete[#to_delete + 1] = base[i] .. K.worker_event
        local s = #to_set
        to_set[s + 1], to_set[s + 2] = P .. object .. K.last_event_id, last
        slot_object[i], prev[i], untagged[i] = object, last, true
        if is_odd then
          M.results.finish(i)
        end
        if result[i] == 'yield' and call('EXISTS', P .. object .. K.events) == 1 then
          M.results.let_go(i, object)
        else
          going[#going + 1] = i
        end
      end
      C.progress = true
    elseif tag and M.results.settle(i, tag) then
      going[#going + 1] = i
    end
  end
  if logs then
    M.log.trim()
  end
end

-- The slots take more of their objects, or leave them if there is no more.
local function go_on(going)
  local queues = {}
  for g, i in ipairs(going) do
    queues[g] = P .. slot_object[i] .. K.events
  end
  -- One look tells whether all of them have come to their end, as is the rule where objects have
  -- few events each.
  local some_left = queues[1] and call('EXISTS', unpack(queues)) > 0
  if some_left then
    write_down()
  end
  for _, i in ipairs(going) do
    local object = slot_object[i]
    local entry, wrong
    if some_left and C.bytes_left <= 0 then
      M.results.let_go(i, object)
    elseif not (some_left and C.rules_next and M.pauses.pause(i, object, nil, true)) then
      if some_left then
        entry, wrong = take(i, object, prev[i])
      end
      if entry then
        M.batch.take_more(i, entry)
        give(i, entry)
      elseif wrong then
        M.aside.put(i, object, wrong)
      else
        leave(i, object)
      end
    end
  end
  write_down()
end

-- Free slots claim the objects to which a pop has moved a marker: their names are in the lists of
-- the slots.
local function claim_popped()
  local lists, free = {}, {}
  for i = 1, n do
    -- In the list of a slot that has just left an object there is one name at least.
    if not busy[i] and not left[i] then
      free[#free + 1], lists[#lists + 1] = i, base[i] .. K.worker_object
    end
  end
  if not lists[1] or lists[2] and call('EXISTS', unpack(lists)) == 0 then
    return
  end
  for f, i in ipairs(free) do
    local names = call('LRANGE', lists[f], 0, -1)
    for k = #names, 1, -1 do
      local object, found, is_ours = names[k], nil, false
      -- What is alone in the list, has no brace, and has no owner, is what a pop has moved.
      if not names[2] and object ~= '' and string.byte(object) ~= 123 and C.claims_left > 0 and C.bytes_left > 0 and not C.claimed[object] then
        found = call('MGET', P .. object .. K.event_worker, P .. object .. K.last_event_id)
        is_ours = not found[1]
      end
      if not is_ours then
        is_ours, found = M.popped.look(i, object)
      end
      if is_ours and own(i, object, found[1], found[2], false, true) == 'empty' then
        call('LREM', lists[f], '1', object)
        to_delete[#to_delete + 1] = P .. object .. K.event_worker
        C.to_expire[#C.to_expire + 1] = C.forget_ms > 0 and P .. object .. K.last_event_id or nil
      end
      C.progress = true
    end
  end
  write_down()
end

-- A slot claims a due held object. Returns 'claimed', 'dropped', or nil if there is none.
local function claim_held(i)
  local got, object, owner, last = M.held.claim(i)
  if got == 'own' then
    got = M.held.owned(object, own(i, object, owner, last, false, false))
  end
  return got
end

-- A slot claims the object of the next marker that leads to one. Returns 'claimed', 'dropped', or
-- nil if there is no marker to look at.
local function claim_marker(i)
  local object, last, sound = M.markers.next()
  if not object then
    return last
  end
  local got = own(i, object, false, last, sound, false)
  -- Only now: a marker is there until something else covers its object.
  C.markers_used = C.markers_used + 1
  return got == 'claimed' and got or 'dropped'
end

-- Held objects and markers in turn, one and one; where one side has nothing, the other goes on.
-- Markers left that this call may not look at are not nothing: their turn goes on with the next
-- call, or an object behind the many that busy ones leave would wait for turns of all of those.
local function claim(i)
  local misses = 0
  while misses < 2 and C.claims_left > 0 and C.bytes_left > 0 and not busy[i] do
    local from_held, put_aside_before, got = C.from == 'held', #C.quarantined, nil
    if from_held then
      got, C.from = (C.is_due or C.held_changed) and claim_held(i) or nil, 'markers'
    else
      got = claim_marker(i)
      if not got and C.markers_left > 0 then
        return
      end
      -- A marker that led nowhere does not use up the turn of the markers.
      C.from = got == 'dropped' and 'markers' or 'held'
    end
    if #C.quarantined > put_aside_before then
      -- To put an object aside takes as long as to let four go.
      C.drops_left = C.drops_left - 4
    elseif got == 'dropped' and from_held then
      C.drops_left = C.drops_left - 1
    end
    if C.drops_left <= 0 then
      C.claims_left = 0
    end
    misses = got and 0 or misses + 1
  end
end

local function advance()
  if rules_next and rules_next ~= 'never' and tonumber(rules_next) <= M.time.now_ms() then
    M.pauses.wake()
  end
  local going = {}
  commit(going)
  go_on(going)
  for _, look in ipairs(C.looks) do
    M.popped.give_back(look)
  end
  local without = n
  for i = 1, n do
    without = without - (busy[i] and 1 or 0)
  end
  -- No more, so that room for more events than the first ones remains.
  C.claims_left = math.min(C.claims_left, without, 512)
  if without > 0 then
    claim_popped()
  end
  if C.claims_left > 0 and (C.is_due or C.held_changed or C.markers_left > 0) then
    for i = 1, n do
      claim(i)
    end
  end
  for i, object in pairs(left) do
    call('LREM', base[i] .. K.worker_object, '1', object)
  end
end

-- Whatever happens in between, what was claimed gets its ids, and ids that were given and markers
-- that were used are written down.
local is_wanted = C.claims_left > 0
local done, failed = pcall(advance)
-- Where objects have one event each, as is the rule while nothing has piled up, one look tells.
local some_left = claimed[1] and call('EXISTS', unpack(claimed_queues)) > 0
for c, i in ipairs(claimed) do
  if some_left and C.bytes_left > 0 then
    M.batch.take_more(i, claimed_entries[c])
  end
  give(i, claimed_entries[c])
end
if C.markers_used > 0 then
  M.markers.trim()
end
for i = 1, n do
  if untagged[i] and not busy[i] then
    to_delete[#to_delete + 1] = tag_keys[i]
  end
end
if C.counter ~= counter_before then
  to_set[#to_set + 1] = P .. K.next_event_id
  to_set[#to_set + 1] = M.ids.text(C.counter)
end
write_down()
if not done then
  -- Redis makes text of an error that pcall caught; its code, e.g. WRONGTYPE, comes first.
  local why = type(failed) == 'table' and failed.err or failed
  return redis.error_reply(string.match(why, '^%u+ ') and why or 'ERR ' .. why)
end

if C.held_changed then
  soonest = call('ZRANGE', P .. K.objects_held, 0, 0, 'WITHSCORES')
end
local due_ms = -1
if soonest[2] and soonest[2] ~= 'inf' then
  due_ms = math.max(tonumber(soonest[2]) - M.time.now_ms(), 0)
end
local more = C.rules_next == '0' or is_wanted and C.progress and (C.markers_left > 0 or due_ms == 0 or C.bytes_left <= 0)
if C.rules_next and C.rules_next ~= 'never' then
  local end_ms = math.max(tonumber(C.rules_next) - M.time.now_ms(), 0)
  due_ms = due_ms < 0 and end_ms or math.min(due_ms, end_ms)
end
return { 'ok', due_ms, more and 1 or 0, C.from, entries, C.quarantined }
