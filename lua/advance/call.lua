-- call: what the call names, in which order it is dealt with, and the reply.
local slots, tag_keys, looks = {}, {}, {}
local width = { free = 0, look = 0, done = 3, yield = 3, part = 5, hold = 6, reject = 8, complete = 8 }
local at = P .. WORKER .. name .. '.'
local i = SLOT_ARGS
while ARGV[i] do
  local number, result = ARGV[i], ARGV[i + 1]
  local slot = { number = number, at = at .. number, result = result, arg = i + 2 }
  if result == 'look' then
    looks[#looks + 1] = slot
  else
    slots[#slots + 1] = slot
    tag_keys[#tag_keys + 1] = slot.at .. worker_event_id
  end
  i = i + 2 + width[result]
end

-- A pop has moved names into the lists of these slots.
local function claim_what_was_popped()
  local lists = {}
  for _, slot in ipairs(slots) do
    if not slot.has then
      lists[#lists + 1] = slot.at .. worker_object
    end
  end
  if #lists > 0 and call('EXISTS', unpack(lists)) > 0 then
    for _, slot in ipairs(slots) do
      if not slot.has then
        claim_taken(slot)
      end
    end
  end
end

local function advance()
  go_on(commit(slots, #tag_keys > 0 and call('MGET', unpack(tag_keys)) or {}))
  for _, slot in ipairs(looks) do
    return_strays(slot)
  end
  claim_what_was_popped()
  for _, slot in ipairs(slots) do
    claim(slot)
  end
end

-- Whatever happens in between, what was claimed gets its ids, and ids that were given and markers that were used are written down.
local claims_wanted = claims > 0
local done, failed = pcall(advance)
fill()
trim_markers()
for _, slot in ipairs(slots) do
  if slot.untagged and not slot.has then
    delete_later(slot.at .. worker_event_id)
  end
end
if id_of(counter_text) ~= counter then
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
local more = claims_wanted and progress and (markers_left > 0 or due_ms == 0 or reply_bytes <= 0)
return { 'ok', due_ms, more and 1 or 0, from, entries, quarantined }
