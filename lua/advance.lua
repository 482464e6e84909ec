-- advance: commit and claim, for any number of slots in one call.
--
-- Purpose   Commits the results of batches in flight, gives the same slots more events of their
--           objects, and gives free slots other objects. Pauses objects that a rule names, and
--           wakes objects whose rules were lifted or have ended; both in bounded steps. A repeated
--           call changes nothing: the script ignores a result unless the result names the batch in
--           flight, and gives a slot that still has a batch that same batch again.
-- Keys      KEYS[1] event.worker:NAME:lease (string, read)
--           next.event.id (string), objects.with.events (list), objects.held and objects.paused
--           (zsets): read and written
--           event.workers and event.rules (hashes): read
--           events.dead (stream): written; event.log (stream): written and trimmed
--           event.worker:W:* of the named slots, and of the objects that they have or get
--           OBJ:events, OBJ:last.event.id, OBJ:event.worker, OBJ:events.held, OBJ:events.held.id:
--           read and written
--           OBJ:event.handled (hash): read and deleted; OBJ:event.errors (list): written
--           OBJ:event.key (string), OBJ:events.scheduled (hashes) and events.scheduled (zset) of
--           events with a key: read and written
--           OBJ:events of the objects for which handlers emitted (lists): written. Of the objects
--           for which handlers scheduled: OBJ:events.scheduled (hashes), events.scheduled and
--           events.scheduled.wake (zsets): read and written
--           event.shares (hash): read. event.shares.used (hash), objects.in.hand (zset) and all keys
--           of groups (lib/group.lua, lib/share.lua): read and written
-- Arguments prefix; name; token (UUID); events per batch (1 to 1000); bytes per batch; bytes per
--           reply; slots without a batch (0 to 1024); markers looked at (1 to 4096); where to claim
--           first: held | markers; ms after which the last id of a released object is forgotten (0:
--           never); highest id that the caller has seen (0: none); room for suspects
--           (lib/suspects.lua); parts of a name that are its group (0: no groups)
--           with the event log on: `log`; rows kept (about); ms that rows are kept (0: any age)
--           then per slot its number and a result; with the log on, each result is followed by the
--           age of its batch in ms:
--             free     the caller knows of no batch
--             look     the slot is busy; return a name that a pop moved to its list
--             handled  the slot's next result may end the event whose handler progress is stored in
--                      OBJ:event.handled; if it does, the emits of its handlers are pushed and the
--                      hash is deleted
--             done OBJECT TAG LAST
--                      the whole batch is delivered; LAST is the id of its last event
--             WORD …   another result of the batch; lua/advance/results.lua lists words and fields
-- Replies   {'ok', ms to the next due time or end of a rule (-1: none), more 0|1|2, where to claim
--           first next time, {slot…} | nil, {quarantined: object, why, …} | nil}
--             more: 1: another call can claim or wake more objects now; 2: also markers or due held
--             objects wait that belong to unknown groups, so another call is of use even without
--             a free slot
--             slot = {number, object, tag, prev, event…}, oldest event first; an absent slot is
--             free
--             why = `quarantine: …`: the object is held for an operator; or `foreign: …`: the name
--             of an object without a namespace begins with a brace, so its marker is dropped and
--             its keys are not touched. At most 64 of these, each name cut at 512 bytes
--           | {'lapsed'} | {'fenced', lease}
--           | {'counter', value}: next.event.id is no number, or at its end
-- Keeps     I1 to I6
-- Cost      A call claims at most 512 objects and passes over at most 256 that cannot be claimed.
--           It takes at most 4,096 events, and one batch more than fits into the reply's bytes; the
--           first event of a batch counts as four. It pauses at most 256 objects, wakes 64, and
--           asks for 2,048 fields of rules; the last object may ask for 18 more. The caller bounds
--           the results, their rows in the log and the handler progress (src/wire/worker/load.rs).
--           Commands: about 20 per call; 2 per claim; 2 or more per batch of more than one event; 1
--           per object that is looked up in the rules; 2 per due suspect without room. With the log
--           on: 1 per finalized event, 2 per batch, 3 per call. Per failed event 1 or 2, and 1 more
--           when it ends. For events with a key, handlers, lost keys, groups and limits:
--           advance/keyed.lua, finish.lua, missing.lua, sorting.lua, groups.lua, limits.lua
-- Uses: again.rise_above aside.put aside.refused aside.wrong_of batch.go_on batch.put_back
-- Uses: batch.take_more fence.refused groups.close ids.after ids.parse ids.text jump.beyond
-- Uses: keyed.tag_of keyed.take limits.check_types limits.close limits.release limits.soonest
-- Uses: log.trim markers.trim missing.free missing.tag_again pauses.pause pauses.wake popped.claim
-- Uses: popped.give_back popped.slots results.finish results.is_whole results.let_go results.name
-- Uses: results.prepare results.settle state.error_reply state.expire state.guard state.open
-- Uses: time.now_ms turns.claim
local args = ARGV
local name, token = args[2], args[3]
local SLOT_ARGS, LOG_ARGS = 14, 3
local ID_MAX = 9007199254740991 -- 2^53 - 1
local byte = string.byte
local logs, forgets, owner_base = args[SLOT_ARGS] == 'log', args[10] ~= '0', P .. K.WORKER .. name .. '.'

-- Fence.
local lease = call('GET', KEYS[1])
if not lease or string.sub(lease, 1, #token) ~= token then
  return M.fence.refused(name, token, lease)
end

-- Every call reads these shared keys. If one of them has a wrong type, the call fails here, before
-- the first write. Constants are texts, because Redis formats each number with 17 digits.
local counts, claims_left = call('MGET', P .. K.next_event_id, P .. K.event_groups_waiting, P .. K.event_shares_summary), args[7] + 0
local counter_text = counts[1]
local soonest, rules_next = call('ZRANGE', P .. K.objects_held, '0', '0', 'WITHSCORES'), call('HGET', P .. K.event_rules, 'next')
local markers = call('LLEN', P .. K.objects_with_events)
if rules_next then
  call('ZCARD', P .. K.objects_paused)
end
-- The mode of event.shares.summary as a character: 48 without shares, 50 with limits.
local shares_mode = counts[3] and byte(counts[3]) or 48
if counts[3] then
  M.limits.check_types()
end

-- The counter of ids. `connect` has written it, so an absent counter was evicted. A counter below
-- the highest id that the caller has seen is from an earlier state of Redis. The number is parsed
-- here, so that calls that only commit do not need the module of ids.
if not counter_text then
  -- MGET also returns nil for a key of a wrong type. GET fails then.
  call('GET', P .. K.next_event_id)
end
local counter_before = counter_text and #counter_text <= 16 and string.find(counter_text, '^%d+$') and tonumber(counter_text)
local counter = counter_before
if counter_text and not counter then
  return { 'counter', counter_text }
elseif not counter or counter_text ~= args[11] and counter < tonumber(args[11]) then
  counter = M.jump.beyond(math.max(counter or 0, tonumber(args[11])))
end
-- An arithmetic operation reads a text as a number, and costs half of `tonumber`.
if counter + 1024 * args[4] > ID_MAX then
  return { 'counter', counter_text or '0' }
end

-- `C`, the state of this call: the work that the call may still do, and the work that it has done.
-- M.state.open adds the fields that only modules need. So a small call makes few tables and
-- functions, which are most of its cost.
-- Tables with `nil` have room for the items of a small call, because growing a table costs more.
local arg, left, to_delete, to_set = { nil }, { nil }, { nil, nil, nil }, { nil, nil, nil, nil, nil, nil }
local may_claim = claims_left > 0
local busy, entries, taken, claimed = may_claim and { nil }, may_claim and { nil }, may_claim and { nil }, may_claim and {}
-- `batch_keys`: by slot that has committed, the key of its batch. `queues_taken`: the queues from
-- which slots have taken first events.
local batch_keys, queues_taken, took = { nil }, { nil }, counts[3] and {}
C = {
  -- At 0 bytes the reply counts as full.
  counter = counter, bytes_left = args[6] + 0, claims_left = claims_left, events_left = 4096, markers_left = markers,
  -- The number of names that are set aside for groups. Of 0 and `nan`, math.max returns the first.
  waiting = math.max(0, tonumber(counts[2]) or 0),
  -- `took`: if shares are set, the objects that the call has claimed.
  shares = counts[3], took = took,
  from = args[9], rules_next = rules_next,
  -- `is_due`: whether a held object may be due. `has_held`: whether an object is held. `held_changed`:
  -- whether objects.held may have changed. `progress`: whether this call has done anything.
  is_due = soonest[2] and soonest[2] ~= 'inf' and tonumber(soonest[2]) <= M.time.now_ms() or false, has_held = soonest[1] ~= nil,
  held_changed = false, progress = false,
  -- Tables with an item per slot, in the order of the call. `arg`: the position in ARGV of the
  -- fields of the slot's result. `left`: the object that the slot has left, whose name is still
  -- in the slot's list.
  arg = arg, left = left,
  -- Keys to delete, and keys to set with their values. These writes wait until all slots have
  -- reached the same step, so that one command does the writes of all slots. DEL and MSET cannot
  -- fail, because they accept keys of any type. Code that reads such a key calls `write_down`
  -- first. MSET removes a time to live, so `write_down` sets times to live after it.
  to_delete = to_delete, to_set = to_set,
  -- These tables are made here only if slots may claim (lua/advance/state.lua).
  busy = busy, entries = entries, taken = taken, claimed = claimed,
}

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
  if forgets then
    M.state.expire()
  end
end

-- Makes the slot the owner of `object` and takes its first event. Returns 'claimed', 'empty',
-- 'paused', 'postponed', or 'wrong'. `owner`, `last`: values of the object's keys. `source`: `list`
-- if the slot's list already has the name; `held`; `markers`; or `sound markers` if a missing
-- `owner` or `last` means an absent key, not a key of a wrong type. `owner_key`: nil, or the key of
-- the owner.
local own
own = may_claim and function(i, object, owner, last, source, owner_key)
  if C.rules_next and owner ~= 'held' and M.pauses.pause(i, object, last, source) then
    return 'paused'
  end
  local last_id = last and M.ids.parse(last)
  owner_key = owner_key or P .. object .. K.event_worker
  local usual = not last or last_id and last_id <= C.counter
  if usual and source ~= 'sound markers' and not (owner and last) then
    -- MGET returns nil for an absent key, and also for a key of a wrong type.
    local last_key = P .. object .. K.last_event_id
    usual = call('EXISTS', owner and last_key or owner_key, last and owner_key or last_key) == 0
  end
  if not usual then
    M.state.open(own)
    local refused = M.aside.refused(i, object, owner, last, last_id)
    if refused then
      return refused
    end
  end
  local queue, number = P .. object .. K.events, args[arg[i] - 2]
  local event = try('LMOVE', queue, batch_keys[i] or owner_base .. number .. K.worker_event, 'RIGHT', 'LEFT')
  if not event then
    return 'empty'
  elseif #event == 0 and type(event) == 'table' then
    -- An error. The length is looked at first, because `type` costs more.
    M.state.open(own)
    M.aside.put(i, object, M.aside.wrong_of(i, object, event))
    return 'wrong'
  elseif byte(event) == 0 then
    -- An event that begins with a NUL may be a reference to a schedule.
    local got
    M.state.open(own)
    event, got = M.keyed.take(i, object, event)
    if not event then
      return got
    end
  end
  local entry = { number, object, '', last or '0', event }
  if source ~= 'list' then
    -- Replaces the name of the object that the slot has left, if there is one.
    local list, put, refused = owner_base .. number .. K.worker_object, nil, nil
    if left[i] then
      put = try('LSET', list, '-1', object)
      -- If the key is lost, a new list begins.
      put = put.err and call('EXISTS', list) == 0 and try('LPUSH', list, object) or put
      refused = type(put) == 'table' and put.err
    else
      put = try('LPUSH', list, object)
      refused = type(put) == 'table'
    end
    if refused then
      M.batch.put_back(i, entry)
      error(put)
    end
    left[i] = nil
  end
  -- The first event of a batch takes as much time as four later ones.
  local bytes_left, events_left = C.bytes_left - #event, C.events_left - 4
  if events_left <= 0 then
    bytes_left = math.min(bytes_left, 0)
  end
  C.bytes_left, C.events_left = bytes_left, events_left
  local e, s = #entries + 1, #to_set
  to_set[s + 1], to_set[s + 2] = owner_key, name .. '.' .. number
  if last and forgets then
    -- Sets the last id again, which removes its time to live. The last id must not expire while
    -- later events of the object are in flight.
    to_set[s + 3], to_set[s + 4] = P .. object .. K.last_event_id, last
  end
  entries[e], taken[e], busy[i] = entry, i, true
  queues_taken[#queues_taken + 1] = queue
  C.claims_left, C.progress = C.claims_left - 1, true
  if took then
    took[#took + 1] = object
  end
  return 'claimed'
end

-- Reads the results `free` and `done`. M.results.name reads all other results.
if logs or forgets or rules_next or counts[3] then
  M.state.open(own)
end
local n, tag_keys, at = 0, { nil }, SLOT_ARGS + (logs and LOG_ARGS or 0)
while args[at] do
  local word = args[at + 1]
  if word == 'free' or word == 'done' then
    n = n + 1
    arg[n], tag_keys[n] = at + 2, owner_base .. args[at] .. K.worker_event_id
    at = at + (word == 'free' and 2 or logs and 6 or 5)
  else
    M.state.open(own)
    n, at = M.results.name(at, n, tag_keys, owner_base)
  end
end
local tags = n > 0 and call('MGET', unpack(tag_keys)) or tag_keys
if rules_next and rules_next ~= 'never' and tonumber(rules_next) <= M.time.now_ms() then
  M.state.guard(M.pauses.wake)
end

-- Commit. A slot that has nothing more in hand leaves its object.
-- `q`, `c`, `d`, `s`: the numbers of items in `queues`, `committed`, `to_delete` and `to_set`.
local queues, committed, handled, q, c, d, s = { nil }, { nil }, C.handled, 0, 0, 0, 0
for i = 1, C.failed and 0 or n do
  local tag, a, is_over = tags[i], arg[i], false
  local word, object = args[a - 1], args[a]
  if not tag and word ~= 'free' then
    M.state.open(own)
    tag = M.state.guard(M.missing.tag_again, i)
  end
  if tag and (word == 'done' or word ~= 'free' and M.results.is_whole(word)) and args[a + 1] == tag then
    -- The commit needs additional steps if the word is another one, if handlers have finished an
    -- event, or if the log is on. It also needs them if the tag has a blank: the tag has hand-outs,
    -- attempts or crashes, or the event has a key. The tag of a usual batch of one event is the id
    -- of this event.
    local last = args[a + 2]
    local is_odd = word ~= 'done' or logs or handled and handled[args[a - 2]] or tag ~= last and string.find(tag, ' ', 1, true)
    if is_odd then
      M.state.open(own)
    end
    if last - C.counter > 0 then
      -- The counter is from an earlier state of Redis, and the caller no longer knows the highest
      -- id that it has seen.
      M.again.rise_above(tonumber(last))
    end
    if not is_odd or M.state.guard(M.results.prepare, i) then
      local batch_key = owner_base .. args[a - 2] .. K.worker_event
      to_delete[d + 1], batch_keys[i] = batch_key, batch_key
      to_set[s + 1], to_set[s + 2] = P .. object .. K.last_event_id, last
      d, s = d + 1, s + 2
      if is_odd then
        M.state.guard(M.results.finish, i)
        d, s = #to_delete, #to_set
      end
      -- The tag is deleted at the end of the call, if the slot has no other batch by then.
      c = c + 1
      committed[c] = i
      is_over = word ~= 'yield' or call('EXISTS', P .. object .. K.events) == 0
      if not is_over then
        M.state.guard(M.results.let_go, i, object)
      end
    end
    C.progress = true
  elseif tag then
    M.state.open(own)
    is_over = M.state.guard(M.results.settle, i, tag)
    object, d, s = is_over and C.object[i], #to_delete, #to_set
  end
  if is_over then
    q = q + 1
    left[i], queues[q] = object, P .. object .. K.events
  end
  if C.failed then
    break
  end
end
if logs and not C.failed then
  M.state.guard(M.log.trim)
end

-- Go on. If objects have few events each, as is usual, none of these objects has more events, and
-- one EXISTS shows this for all of them.
if queues[1] and not C.failed and call('EXISTS', unpack(queues)) > 0 then
  write_down()
  M.state.open(own)
  M.state.guard(M.batch.go_on, n)
end
if C.failed then
  -- After a failure the slots keep their objects, because these objects may have more events.
  left = {}
  C.left = left
end
d = #to_delete
for i = 1, queues[1] and n or 0 do
  if left[i] then
    -- The name stays in the slot's list until the name of the slot's next object replaces it, or
    -- until the call ends. It is the last name in the list, because later names are pushed before
    -- it.
    d = d + 1
    to_delete[d] = P .. left[i] .. K.event_worker
    if forgets then
      C.to_expire[#C.to_expire + 1] = P .. left[i] .. K.last_event_id
    end
  end
end

if counts[3] then
  M.state.guard(M.limits.release, queues[1] and n or 0)
end

if C.looks and not C.failed then
  write_down()
  for _, look in ipairs(C.looks) do
    M.state.guard(M.popped.give_back, look)
  end
end

-- Claim. A call claims at most 512 objects, and no more than there are free slots, so that room
-- remains for further events of these objects. First come the objects whose markers were moved by
-- pops: their names are in the lists of free slots. The list of a slot that has just left an object
-- exists in any case, because it still has the name of that object.
local lists, batches, without, l, slot = { nil }, { nil }, 0, 0, nil
busy = C.busy
for i = 1, C.failed and 0 or n do
  if not (busy and busy[i]) then
    without = without + 1
    if not left[i] then
      local base = owner_base .. args[arg[i] - 2]
      l, slot = l + 1, i
      lists[l], batches[l] = base .. K.worker_object, base .. K.worker_event
    end
  end
end
if l > 0 and call('EXISTS', unpack(batches)) > 0 then
  -- A slot without a tag has a batch, so a key is lost. No other event may get into this batch.
  write_down()
  M.state.open(own)
  local free = M.state.guard(M.missing.free, n) or { lists = {}, without = 0 }
  busy, lists, l, without, slot = C.busy, free.lists, #free.lists, free.without, free.slot
end
C.claims_left = math.min(C.claims_left, without, 512)
local with_names = l > 1 and call('EXISTS', unpack(lists)) or l
local with = with_names == 0 and {} or l == 1 and { slot } or M.popped.slots(n, lists, with_names)
for _, i in ipairs(with) do
  local names, found, done, got = try('LRANGE', owner_base .. args[arg[i] - 2] .. K.worker_object, '0', '-1'), nil, nil, nil
  local object = not C.failed and names[1]
  if object then
    write_down()
    -- A pop has moved this name if it is alone in its list, does not begin with a brace or a NUL,
    -- and its object has no owner. While objects are held, it may be one that has lost its owner.
    local first = string.byte(object) or 0
    if not names[2] and shares_mode < 50 and first ~= 0 and first ~= 123 and C.claims_left > 0 and C.bytes_left > 0 and not C.claimed[object] then
      found = call('MGET', P .. object .. K.event_worker, P .. object .. K.last_event_id)
      if not found[1] and not soonest[1] then
        done, got = pcall(own, i, object, false, found[2], 'list')
        C.failed = not done and got
      end
    end
    if got == 'claimed' then
      C.claimed[object] = i
    elseif not C.failed then
      M.state.open(own)
      M.state.guard(M.popped.claim, i, names)
    end
  end
  C.failed = C.failed or names.err and names or false
end
-- Then held objects that are due, and markers, in turn. If names are set aside for groups, a call
-- without free slots also sets aside the next markers and held objects.
local has_groups, waits = args[13] ~= '0' or shares_mode > 48, C.waiting > 0
if not C.failed and (C.claims_left > 0 and (C.limited or waits or C.is_due or C.held_changed or C.markers_left > 0) or has_groups and waits and (C.markers_left > 0 or C.is_due or C.held_changed)) then
  write_down()
  M.state.open(own)
  M.state.guard(M.turns.claim, n)
end
for k, object in pairs(left) do
  local removed = try('LREM', owner_base .. args[arg[k] - 2] .. K.worker_object, '1', object)
  C.failed = C.failed or type(removed) == 'table' and removed
end

-- Even if the call has failed, events that were taken get their ids. Then the call trims the markers
-- that it has used, and writes the new counter.
entries, taken = C.entries or {}, C.taken
if entries[1] then
  local take_more = false
  -- As long as no events have piled up, no claimed object has more events.
  if queues_taken[1] and call('EXISTS', unpack(queues_taken)) > 0 then
    M.state.open(own)
    take_more = M.batch.take_more
  end
  local last, s = C.counter, #to_set
  local id_after, id_text, keys = M.ids.after, M.ids.text, C.key
  for e = 1, #entries do
    local slot, entry = taken[e], entries[e]
    if slot then
      local key = keys and keys[slot]
      if take_more and C.bytes_left > 0 and not key then
        M.state.guard(take_more, slot, entry)
      end
      local first = id_after(last, 1)
      local tag = id_text(first)
      if key then
        tag = M.keyed.tag_of(slot, entry[2], tag)
        s = #to_set
      end
      last = entry[6] and id_after(last, #entry - 4) or first
      to_set[s + 1], to_set[s + 2] = tag_keys[slot], tag
      entry[3], s = tag, s + 2
    end
  end
  C.counter = last
end
busy = C.busy or {}
for k = 1, c do
  if not busy[committed[k]] then
    to_delete[#to_delete + 1] = tag_keys[committed[k]]
  end
end
if C.grouped then
  M.state.guard(M.groups.close)
elseif (C.markers_used or 0) > 0 then
  M.state.guard(M.markers.trim)
end
if counts[3] then
  M.state.guard(M.limits.close)
end
if C.counter ~= counter_before then
  local s = #to_set
  to_set[s + 1], to_set[s + 2] = P .. K.next_event_id, M.ids.text(C.counter)
end
write_down()
if C.failed then
  return M.state.error_reply()
end

if C.held_changed then
  soonest = call('ZRANGE', P .. K.objects_held, '0', '0', 'WITHSCORES')
end
soonest = C.limited and M.limits.soonest(soonest) or soonest
local due_ms = soonest[2] and soonest[2] ~= 'inf' and math.max(tonumber(soonest[2]) - M.time.now_ms(), 0) or -1
rules_next = C.rules_next
local unsorted = C.unsorted
local more = rules_next == '0' or claims_left > 0 and C.progress and ((C.ready or C.markers_left + C.waiting) > 0 or due_ms == 0 or C.bytes_left <= 0 or unsorted)
if rules_next and rules_next ~= 'never' then
  local end_ms = math.max(tonumber(rules_next) - M.time.now_ms(), 0)
  due_ms = due_ms < 0 and end_ms or math.min(due_ms, end_ms)
end
return { 'ok', due_ms, unsorted and has_groups and 2 or more and 1 or 0, C.from, entries[1] and entries or false, C.quarantined and C.quarantined[1] and C.quarantined or false }
