-- call: what the call names, in which order it is dealt with, and the reply.
local slots, tag_keys, looks, handled, n_slots = {}, {}, {}, {}, 0
local width = { free = 0, look = 0, handled = 0, done = 3, yield = 3, part = 5, hold = 6, reject = 8, complete = 8 }
local at = P .. WORKER
local i = SLOT_ARGS + (log_on and LOG_ARGS or 0)
while args[i] do
  local number, result = args[i], args[i + 1]
  local w = name .. '.' .. number
  local keys = at .. w
  -- With all of its fields, so that the table does not grow later.
  local slot = {
    number = number, w = w, list = keys .. worker_object, batch = keys .. worker_event, tag = keys .. worker_event_id, result = result,
    arg = i + 2, has = false, untagged = false, object = false, left = false, prev = false, taken = false,
    handled = handled[number] or false,
  }
  if result == 'look' then
    looks[#looks + 1] = slot
  elseif result == 'handled' then
    handled[number] = true
  else
    n_slots = n_slots + 1
    slots[n_slots], tag_keys[n_slots] = slot, slot.tag
  end
  i = i + 2 + width[result]
  if log_on and width[result] > 0 then
    slot.taken = text_of(now_ms - tonumber(args[i]))
    i = i + 1
  end
end

-- Free slots, for which a pop may have moved names into their lists. In those of slots that have just left an object there is one name at least.
local function claim_what_was_popped()
  local free_slots, lists = {}, {}
  for _, slot in ipairs(slots) do
    if not slot.has and not slot.left then
      free_slots[#free_slots + 1], lists[#lists + 1] = slot, slot.list
    end
  end
  if #lists > 0 and call('EXISTS', unpack(lists)) > 0 then
    for _, slot in ipairs(free_slots) do
      claim_taken(slot)
    end
  end
end

local function advance()
  if rules_next and rules_next ~= 'never' and tonumber(rules_next) <= now_ms then
    rules().wake()
  end
  go_on(commit(slots, #tag_keys > 0 and call('MGET', unpack(tag_keys)) or {}))
  for _, look in ipairs(looks) do
    strays()(look, slots)
  end
  local without = 0
  for _, slot in ipairs(slots) do
    without = without + (slot.has and 0 or 1)
  end
  -- No more, so that room for more events than the first ones remains.
  claims = math.min(claims, without, 512)
  claim_what_was_popped()
  for _, slot in ipairs(slots) do
    claim(slot)
    if slot.left then
      call('LREM', slot.list, '1', slot.left)
    end
  end
end

-- Whatever happens in between, what was claimed gets its ids, and ids that were given and markers that were used are written down.
local claims_wanted = claims > 0
local done, failed = pcall(advance)
fill()
if markers_used > 0 then
  markers().trim()
end
for _, slot in ipairs(slots) do
  if slot.untagged and not slot.has then
    delete_later(slot.tag)
  end
end
if counter_before ~= counter then
  set_later(P .. next_event_id, text_of(counter))
end
write_down()
if not done then
  -- Redis makes text of an error that pcall caught; its code, e.g. WRONGTYPE, comes first.
  local why = type(failed) == 'table' and failed.err or failed
  return redis.error_reply(string.match(why, '^%u+ ') and why or 'ERR ' .. why)
end

if progress then
  soonest = call('ZRANGE', P .. objects_held, 0, 0, 'WITHSCORES')
end
local due_ms = soonest[2] and soonest[2] ~= 'inf' and math.max(tonumber(soonest[2]) - now_ms, 0) or -1
local more = rules_next == '0' or claims_wanted and progress and (markers_left > 0 or due_ms == 0 or reply_bytes <= 0)
if rules_next and rules_next ~= 'never' then
  local end_ms = math.max(tonumber(rules_next) - now_ms, 0)
  due_ms = due_ms < 0 and end_ms or math.min(due_ms, end_ms)
end
return { 'ok', due_ms, more and 1 or 0, from, entries, quarantined }
