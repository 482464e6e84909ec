-- arguments: unpacks the arguments of a call of advance, sets all state anew, and reads the texts
-- that every call needs.
local SLOTS_FROM, LOG_ARGS, OWNER = 9, 3, K.event_worker
-- The most events that a call takes, and the most objects that it passes over.
local EVENTS_MAX, DROPS_MAX = 4096, 256
-- The most events that a call puts back, and their bytes.
local BACK_MAX, BACK_BYTES_MAX = 2048, 4194304

-- Removes all fields of a table.
local function empty(of)
  for field in next, of do
    of[field] = nil
  end
end

-- Begins a call: nothing is left of an earlier one, even if that one has failed in the middle.
local function open(argv)
  for name in next, passing do
    rare[name], passing[name] = nil, nil
  end
  if call.has_results then
    rare.results.forget()
  end
  writes.begin()
  empty(call.claimed)
  empty(call.excluded)
  local this, given, claims_wanted = call, bounds.of(argv[4]), tonumber(argv[5])
  this.name, this.token, this.bounds, this.claims_wanted, this.from = argv[2], argv[3], given, claims_wanted, argv[6]
  this.highest, this.suspects, this.logs, this.markers_max = argv[7], argv[8], argv[SLOTS_FROM] == 'log', given.markers
  if this.logs then
    this.log_keep, this.log_keep_ms = argv[SLOTS_FROM + 1], argv[SLOTS_FROM + 2]
  end
  this.keys, this.slots_n, this.looks, this.handled, this.has_results = namespaces.current(), 0, false, false, false
  this.shares, this.limited, this.has_groups, this.soonest, this.is_due, this.has_held, this.rules_next = false, false, false, false, false, false, false
  this.counter, this.counter_before, this.markers_left, this.waiting = 0, false, 0, 0
  this.failed, this.progress, this.held_changed, this.took, this.quarantined, this.quarantined_n = false, false, false, false, false, 0
  this.reply, this.entries_n, this.queues_n, this.markers_used = { 'ok', '', '', '', '', nil }, 0, 0, 0
  this.back_left, this.back_bytes_left = BACK_MAX, BACK_BYTES_MAX
  this.grouped, this.unsorted, this.ready, this.full_by = false, false, false, false
  budget.claims_left, budget.bytes_left, budget.events_left, budget.drops_left = claims_wanted, given.reply_bytes, EVENTS_MAX, DROPS_MAX
end

-- The keys of the texts that every call needs, and their number.
local text_keys, texts_n, TAGS_AFTER = { nil, nil, nil, nil }, 0, call.TAGS_AFTER

-- Reads the slots from the arguments: each with its result.
local function read_slots(argv)
  local slots, owner_keys, logs, slot_of = call.slots, call.owner_keys, call.logs, namespaces.slots_of(call.keys, call.name)
  local n, at, texts = 0, SLOTS_FROM + (logs and LOG_ARGS or 0), TAGS_AFTER
  local number = argv[at]
  while number do
    local slot, word, has_result = slot_of[number], argv[at + 1], true
    if word == 'free' then
      slot.object, slot.tag, slot.last, at = false, false, false, at + 2
    elseif word == 'done' then
      slot.object, slot.tag, slot.last, at = argv[at + 2], argv[at + 3], argv[at + 4], at + 5
    else
      at, has_result = rare.results.read(slot, argv, at + 1)
    end
    if has_result then
      if logs and word ~= 'free' then
        slot.age, at = argv[at], at + 1
      end
      n = n + 1
      slots[n] = slot
      texts = texts + 1
      text_keys[texts] = slot.tag_key
      if word ~= 'free' then
        texts = texts + 1
        local key = P .. slot.object .. OWNER
        text_keys[texts], owner_keys[n] = key, key
      end
      slot.word, slot.is_committed, slot.left, slot.is_busy, slot.key = word, false, false, false, false
    end
    number = argv[at]
  end
  call.slots_n, texts_n = n, texts
  if call.handled then
    rare.results.note_handled()
  end
end

-- Reads the texts from Redis. One command reads them all, because each command takes time.
local function read_texts(lease_key)
  text_keys[1], text_keys[2] = lease_key, call.keys.counter
  call.texts = redis_call('MGET', unpack(text_keys, 1, texts_n))
end

return { open = open, read_slots = read_slots, read_texts = read_texts }
