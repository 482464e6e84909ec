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
--           of groups (values/group.lua, values/shares.lua): read and written
-- Arguments prefix; name; token (UUID); bounds, in one text with blanks between them: events per
--           batch (1 to 1000), bytes per batch, bytes per reply, markers looked at (1 to 4096), ms
--           after which the last id of a released object is forgotten (0: never), parts of a name
--           that are its group (0: no groups); slots without a batch (0 to 1024); where to claim
--           first: held | markers; highest id that the caller has seen (0: none); room for suspects
--           (values/suspects.lua)
--           with the event log on: `log`; rows kept (about); ms that rows are kept (0: any age)
--           then per slot its number and a result; with the log on, each result is followed by the
--           age of its batch in ms:
--             free     the caller knows of no batch
--             look     the slot is busy; return a name that a pop moved to its list
--             handled  the slot's next result may end the event whose handler progress is stored in
--                      OBJ:event.handled; if it does, the emits of its handlers are pushed and the
--                      hash is deleted
--             done OBJECT TAG LAST
--                      the whole batch is delivered; LAST is the id of its last event. TAG is the tag
--                      of the reply, a line feed, and OBJECT, as in event.worker:W:event.id
--             WORD …   another result of the batch; lua/advance/results.lua lists words and fields
-- Replies   {'ok', ms to the next due time or end of a rule (-1: none), more 0|1|2, where to claim
--           first next time, {quarantined: object, why, …} | nil, slot…}
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
--           on: 1 per finalized event, 2 per batch, 3 per call. Per failed event 2 or 3, and 2 more
--           when it ends. For events with a key, awaited ones, handlers, lost keys, limits and groups:
--           objects/keyed.lua, ends.lua, progress.lua, missing.lua and share_limits.lua,
--           turns/sorting.lua and groups.lua
local set, delete, id_text, sub = writes.set, writes.delete, ids.text, string.sub
local LAST_ID, BATCHES_AFTER = K.last_event_id, call.BATCHES_AFTER
-- The first character of event.shares.summary, if objects in hand are only counted, and if a share
-- has a limit.
local COUNTED, LIMITED = 48, 50
-- An id as text and as number, because the counter of one call is often that of the call before.
local known_text, known_id = '0', 0

-- Returns the reply for a caller without the lease; nil for a caller with it.
local function fence(key)
  local lease = call.texts[1]
  if not lease or sub(lease, 1, #call.token) ~= call.token then
    -- MGET also returns nil for a key of a wrong type. GET fails then.
    lease = lease or redis_call('GET', key)
    return rare.fence.refused(call.name, call.token, lease)
  end
end

-- Reads the counter of ids. `connect` has written it, so an absent counter was evicted. A counter
-- below the highest id that the caller has seen is from an earlier state of Redis. Returns the
-- reply if the counter is no number, or at its end.
local function read_counter(text)
  local this = call
  if not text then
    -- MGET also returns nil for a key of a wrong type. GET fails then.
    redis_call('GET', this.keys.counter)
  end
  local counter = text and (text == known_text and known_id or ids.parse(text))
  this.counter_before = counter
  if text and not counter then
    return { 'counter', text }
  elseif not counter or text ~= this.highest and counter < tonumber(this.highest) then
    counter = rare.jump.beyond(math.max(counter or 0, tonumber(this.highest)))
  end
  if counter + 1024 * this.bounds.batch_events > ids.MAX then
    return { 'counter', text or '0' }
  end
  this.counter = counter
end

-- Reads what all slots share. If one of these keys has a wrong type, the call fails here, before
-- the first write. Constants are texts, because Redis formats each number with 17 digits.
local function read_shared()
  local this = call
  local keys = this.keys
  local soonest, texts = redis_call('ZRANGE', keys.held, '0', '0', 'WITHSCORES'), redis_call('MGET', keys.groups_waiting, keys.shares)
  local waiting, shares = texts[1], texts[2]
  this.rules_next = redis_call('HGET', keys.rules, 'next')
  this.markers_left = redis_call('LLEN', keys.markers)
  if this.rules_next then
    redis_call('ZCARD', P .. K.objects_paused)
    local next_ms = this.rules_next == 'never' and 0 or tonumber(this.rules_next)
    if not next_ms or next_ms ~= next_ms then
      -- The text is no number (`nan` is not equal to itself). So the call looks at all rules, and
      -- writes the time again.
      this.rules_next = '0'
    end
  end
  if shares then
    local mode = string.byte(shares) or COUNTED
    this.shares, this.took, this.limited, this.has_groups = shares, {}, mode == LIMITED, this.has_groups or mode > COUNTED
    rare.share_limits.check_types()
  end
  if waiting then
    -- Of 0 and `nan`, math.max returns the first.
    this.waiting = math.max(0, tonumber(waiting) or 0)
  end
  this.soonest, this.has_held = soonest, soonest[1] ~= nil
  this.is_due = soonest[2] and soonest[2] ~= 'inf' and tonumber(soonest[2]) <= rare.time.now_ms() or false
end

-- Reads what the call needs beside the slots. At low load, nothing is held, no rule or share is set, and
-- a pop has taken the only marker. One EXISTS shows this in place of four commands. Returns the reply if
-- the counter is no number, or at its end.
local function read()
  local keys = call.keys
  call.has_groups = call.bounds.group_depth ~= 0
  if redis_call('EXISTS', keys.held, keys.rules, keys.markers, keys.groups_waiting, keys.shares) > 0 then
    read_shared()
  end
  return read_counter(call.texts[2])
end

-- Slots go on with their objects. If objects have few events each, as is usual, none of these
-- objects has more events, and one EXISTS shows this for all of them. EXISTS also counts a queue of a
-- wrong type, whose object `going_on` quarantines.
local function go_on(queues, q)
  if q > 0 and not call.failed and redis_call('EXISTS', unpack(queues, 1, q)) > 0 then
    writes.flush()
    guard(rare.going_on.all)
  end
end

-- Objects that slots have left get no owner. The name stays in the slot's list until the name of
-- the slot's next object replaces it, or until the call ends. It is the last name in the list,
-- because later names are pushed before it. After a failure the slots keep their objects, because
-- these objects may have more events.
local function release()
  local this = call
  local slots, owner_keys, failed, forgets = this.slots, this.owner_keys, this.failed, this.bounds.forgets
  for i = 1, this.slots_n do
    local slot = slots[i]
    local object = slot.left
    if object and failed then
      slot.left = false
    elseif object then
      delete(owner_keys[i])
      if forgets then
        writes.expire(P .. object .. LAST_ID)
      end
    end
  end
  if this.shares then
    guard(rare.share_limits.release)
  end
  if this.looks and not this.failed then
    writes.flush()
    for _, number in ipairs(this.looks) do
      guard(rare.strays.give_back, number)
    end
  end
end

-- Free slots claim: first the names that pops have moved to their lists, then held objects that are
-- due and markers, in turn. If names are grouped, both are in the lists of groups, and a call without
-- free slots also groups the next ones.
local function claim()
  local this = call
  popped.claim()
  if this.failed then
    return
  end
  local has_new = this.is_due or this.held_changed or this.markers_left > 0
  local may_claim = budget.claims_left > 0 and (has_new or this.limited or this.waiting > 0)
  if may_claim or this.waiting > 0 and has_new and this.has_groups then
    writes.flush()
    guard(rare.sequence.claim)
  end
end

-- Gives the claimed batches their further events and their ids. Even if the call has failed, events
-- that were taken get their ids.
local function number()
  local fields, entry_slots, last, text, id = call.reply, call.entry_slots, call.counter, known_text, known_id
  -- As long as no events have piled up, no claimed object has more events.
  local has_more = call.queues_n > 0 and redis_call('EXISTS', unpack(call.queues, 1, call.queues_n)) > 0
  for e = 1, call.entries_n do
    local slot, entry = entry_slots[e], fields[BATCHES_AFTER + e]
    if slot then
      if has_more and budget.bytes_left > 0 and not slot.key then
        guard(rare.events.take, slot, entry)
      end
      id = last + 1
      text = id_text(id)
      local tag = text
      if slot.key then
        tag = rare.keyed.tag_of(slot, entry[2], tag)
      end
      last = last + #entry - 4
      -- As rare.tag.stored.
      set(slot.tag_key, tag .. '\n' .. entry[2])
      entry[3] = tag
    end
  end
  known_text, known_id, call.counter = text, id, last
end

-- Ends the call: removes the names of the objects that slots have left from the lists of these
-- slots, deletes the tags of slots without a batch, and trims the markers that are used.
local function finish()
  local this = call
  local slots = this.slots
  for i = 1, this.slots_n do
    local slot = slots[i]
    if slot.left then
      local removed = redis_try('LREM', slot.objects_key, '1', slot.left)
      this.failed = this.failed or type(removed) == 'table' and removed
    end
    if slot.is_committed and not slot.is_busy then
      delete(slot.tag_key)
    end
  end
  if this.grouped then
    guard(rare.groups.close)
  elseif this.markers_used > 0 then
    guard(rare.markers.trim)
  end
  if this.shares then
    guard(rare.share_limits.close)
  end
  if this.counter ~= this.counter_before then
    if this.counter ~= known_id then
      known_text, known_id = id_text(this.counter), this.counter
    end
    set(this.keys.counter, known_text)
  end
  writes.flush()
end

-- Returns the ms to a time, at most those that a reply can have as a whole number.
local function wait_ms(at)
  return math.min(math.max(tonumber(at) - rare.time.now_ms(), 0), ids.MAX)
end

-- Returns the ms to the next due time of a held object or a group; -1: none.
local function due_in_ms()
  local soonest = call.soonest
  if call.held_changed then
    soonest = redis_call('ZRANGE', call.keys.held, '0', '0', 'WITHSCORES')
  end
  soonest = call.limited and rare.share_limits.soonest(soonest) or soonest
  return soonest and soonest[2] and soonest[2] ~= 'inf' and wait_ms(soonest[2]) or -1
end

-- Returns the reply of a call that has not failed. A library must not keep the events until the next
-- call, because they may be large.
local function reply()
  local this = call
  local due_ms, rules_next, unsorted = due_in_ms(), this.rules_next, this.unsorted
  local waits = (this.ready or this.markers_left + this.waiting) > 0 or due_ms == 0 or budget.bytes_left <= 0 or unsorted
  local more = rules_next == '0' or this.claims_wanted > 0 and this.progress and waits
  if rules_next and rules_next ~= 'never' then
    local end_ms = wait_ms(rules_next)
    due_ms = due_ms < 0 and end_ms or math.min(due_ms, end_ms)
  end
  local more_word = unsorted and this.has_groups and 2 or more and 1 or 0
  local fields = this.reply
  this.reply = false
  fields[2], fields[3], fields[4], fields[5] = due_ms, more_word, this.from, this.quarantined
  return fields
end

return function(keys, argv)
  arguments.open(argv)
  arguments.read_slots(argv)
  arguments.read_texts(keys[1])
  local refused = fence(keys[1]) or read()
  if refused then
    return refused
  end
  if call.rules_next then
    guard(rare.pauses.wake)
  end
  go_on(commit.commit_all())
  release()
  claim()
  number()
  finish()
  return call.failed and rare.failure.reply() or reply()
end
