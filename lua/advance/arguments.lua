-- arguments: unpacks the arguments of a call of advance, and sets all state anew.
local number_of = known_numbers.by_text
local SLOTS_FROM, LOG_ARGS = 14, 3
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
  call.name, call.token, call.forget_ms, call.highest, call.suspects, call.group_depth = argv[2], argv[3], argv[10], argv[11], argv[12], argv[13]
  call.batch_events, call.batch_bytes, call.claims_wanted, call.markers_max = number_of[argv[4]], number_of[argv[5]], number_of[argv[7]], number_of[argv[8]]
  call.forgets, call.logs, call.from = argv[10] ~= '0', argv[SLOTS_FROM] == 'log', argv[9]
  if call.logs then
    call.log_keep, call.log_keep_ms = argv[SLOTS_FROM + 1], argv[SLOTS_FROM + 2]
  end
  call.keys, call.slots_n, call.looks, call.handled, call.has_results = namespaces.current(), 0, false, false, false
  call.shares, call.limited, call.has_groups, call.soonest, call.is_due, call.has_held, call.rules_next = false, false, false, false, false, false, false
  call.counter, call.counter_before, call.markers_left, call.waiting = 0, false, 0, 0
  call.failed, call.progress, call.held_changed, call.took, call.quarantined, call.quarantined_n = false, false, false, false, false, 0
  call.entries, call.entries_n, call.queues_n, call.markers_used = { nil }, 0, 0, 0
  call.back_left, call.back_bytes_left = BACK_MAX, BACK_BYTES_MAX
  call.grouped, call.unsorted, call.ready, call.full_by = false, false, false, false
  budget.claims_left, budget.bytes_left, budget.events_left, budget.drops_left = call.claims_wanted, number_of[argv[6]], EVENTS_MAX, DROPS_MAX
end

-- The keys of the tags of the slots.
local tag_keys = { nil }

-- Reads the slots: each with its result, and with the tag of its batch in flight.
local function read_slots(argv)
  local slots, logs, slot_of = call.slots, call.logs, namespaces.slots_of(call.keys, call.name)
  local n, at = 0, SLOTS_FROM + (logs and LOG_ARGS or 0)
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
      slots[n], tag_keys[n] = slot, slot.tag_key
      slot.word, slot.is_committed, slot.left, slot.is_busy, slot.key = word, false, false, false, false
    end
    number = argv[at]
  end
  call.slots_n = n
  if n > 0 then
    local tags = redis_call('MGET', unpack(tag_keys, 1, n))
    for i = 1, n do
      slots[i].stored_tag = tags[i]
    end
  end
  if call.handled then
    rare.results.note_handled()
  end
end

return { open = open, read_slots = read_slots }
