-- advance: commit and claim, for any number of slots in one call.
--
-- Purpose   Takes in what became of the batches in flight, gives the same slots more of their objects, and gives free slots other objects.
--           Repeating a call changes nothing: a result that names another batch than the one in flight is ignored, and a slot that still has
--           a batch gets that batch.
-- Keys      KEYS[1] event.worker:NAME:lease (string, read); event.workers (hash, read), next.event.id (string), objects.with.events (list),
--           objects.held (zset), events.dead (stream, written), event.worker:W:* of the slots named, and of the objects they have or get
--           OBJ:events, OBJ:last.event.id, OBJ:event.worker, OBJ:events.held, OBJ:events.held.id (read and write)
-- Arguments prefix; name; token (UUID); events per batch (1 to 1000); bytes per batch; bytes per reply; slots that may claim (0 to 1024);
--           markers looked at (1 to 4096); where to claim first: held | markers; then per slot, its number and a result:
--             free                                                          no batch, as far as the caller knows
--             look                                                          busy, but a pop for it may have moved a name: return it
--             done   OBJECT TAG LAST                                        all delivered, LAST is the id of the last one: go on
--             yield  OBJECT TAG LAST                                        all delivered: let other objects have a turn
--             part   OBJECT TAG LAST COUNT NEXT                             the first COUNT are delivered; the rest, now NEXT, stays in hand
--             hold   OBJECT TAG LAST COUNT DELAY_MS|inf HELD_ID             the first COUNT are delivered; hold the rest
--             reject OBJECT TAG LAST COUNT NEXT ID ERROR ATTEMPTS           the first COUNT are delivered; the one after them, ID, is a dead letter
--           TAG is the tag of the batch in flight as the reply gave it, NEXT the tag of what remains ('' = nothing), LAST '' where COUNT is 0.
-- Replies   {'ok', ms to the next due time | -1, more 0|1, where to claim first next time, {slot…}, {quarantined: object, why, …}}
--             slot = {number, object, tag, prev, event…}, oldest event first; a slot that is not mentioned is free
--           | {'lapsed'} | {'fenced', lease} | {'counter', value}: next.event.id is not a number or at its end
-- Keeps     I1 to I6
-- Cost      per batch about 5 commands, per claim about 6; bounded by slots, events, bytes and markers
local name, token = ARGV[2], ARGV[3]
local batch_max, batch_bytes, reply_bytes = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local claims, markers_max, from = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9]
local SLOT_ARGS = 10

local call, try, format = redis.call, redis.pcall, string.format

-- Fence, and the shared keys read once: one of a wrong type fails here, before anything is written.
local refused = fence(name, token)
if refused then
  return refused
end
local now_ms = now()
local counter_text = call('GET', P .. next_event_id) or '0'
local counter = id_of(counter_text)
if not counter or counter + 1024 * batch_max > ID_MAX then
  return { 'counter', counter_text }
end
local soonest = call('ZRANGE', P .. objects_held, 0, 0, 'WITHSCORES')
local markers_left = call('LLEN', P .. objects_with_events)
local entries, quarantined, progress = {}, {}, false

-- Whether the reply is an error for a key's type. Any other error is no matter of one key, and ends the call.
local function is_wrong_type(reply)
  if type(reply) ~= 'table' or not reply.err then
    return false
  end
  return string.find(reply.err, '^WRONGTYPE') ~= nil or error(reply)
end

-- MGET, because it answers nil for a key of a wrong type where GET would fail. What is no id must not reach the caller: with the
-- batch in hand there is nothing to hold back any more, and 0 is an id before it.
local function last_of(object)
  local last = call('MGET', P .. object .. last_event_id)[1]
  return last and id_of(last) and last or '0'
end

-- Not by string.format, which cuts a name at a NUL.
local function quarantined_by(wrong)
  return 'quarantine: ' .. wrong .. ' is a ' .. call('TYPE', P .. wrong).ok
end

local function hold_now(slot, object)
  hold(slot.at, object, now_ms, nil)
end

-- Holds an object the slot has, until an operator releases it, because its key `wrong` has a wrong type: that must stop nothing else.
local function quarantine(slot, object, wrong)
  local why = quarantined_by(wrong)
  hold(slot.at, object, 'inf', '0 0 0 0 ' .. why)
  quarantined[#quarantined + 1] = object
  quarantined[#quarantined + 1] = why
end

-- Objects this call has dealt with: what a chunk of markers was told of them before does not hold any more.
local met = {}

-- The same for a held object whose owner's key has a wrong type: its batch and the numbers of that stay what they are.
local function quarantine_held(slot, object)
  met[object] = true
  quarantined[#quarantined + 1] = object
  quarantined[#quarantined + 1] = quarantined_by(object .. event_worker)
  call('ZADD', P .. objects_held, 'inf', object)
  call('SET', P .. object .. event_worker, 'held')
  call('LREM', slot.at .. worker_object, 1, object)
end

local function release(slot, object)
  call('DEL', P .. object .. event_worker, slot.at .. worker_event_id)
  call('LREM', slot.at .. worker_object, 1, object)
end

-- TAKE AND GIVE

-- Moves up to a batch of `object` into the slot's empty batch. Answers the events, oldest first, or nil and the key of a wrong type.
local function take(slot, object)
  local queue, batch = P .. object .. events, slot.at .. worker_event
  local event = try('LMOVE', queue, batch, 'RIGHT', 'LEFT')
  if not event then
    return {}
  elseif is_wrong_type(event) then
    -- Raises where it is the batch that has a wrong type: that is the worker's own key, not the object's.
    call('LLEN', batch)
    return nil, object .. events
  end
  local taken, n, bytes, longest = { event }, 1, #event, #event
  while n < batch_max and bytes < batch_bytes do
    -- Sizes are known only after taking: what is next is guessed to be as long as the longest so far, and what does not fit is put back.
    local guess = math.floor((batch_bytes - bytes) / math.max(longest, 1))
    local want = math.min(batch_max - n, math.max(guess, 1), 16 + 4 * n)
    local more = call('RPOP', queue, want)
    if not more then
      break
    end
    local fit = 0
    while fit < #more and (fit == 0 or bytes < batch_bytes) do
      fit, n = fit + 1, n + 1
      taken[n] = more[fit]
      bytes = bytes + #more[fit]
      longest = math.max(longest, #more[fit])
    end
    call('LPUSH', batch, unpack(more, 1, fit))
    for i = #more, fit + 1, -1 do
      call('RPUSH', queue, more[i])
    end
    if fit < want then
      break
    end
  end
  reply_bytes = reply_bytes - bytes
  return taken
end

-- Puts back what was taken, as if nothing had been.
local function put_back(slot, object, taken)
  for i = #taken, 1, -1 do
    call('RPUSH', P .. object .. events, taken[i])
    reply_bytes = reply_bytes + #taken[i]
  end
  call('DEL', slot.at .. worker_event)
end

-- Gives the slot what it took, under new ids.
local function give(slot, object, prev, taken)
  local tag = format('%.0f', counter + 1)
  counter = counter + #taken
  call('SET', slot.at .. worker_event_id, tag)
  entries[#entries + 1] = { slot.number, object, tag, prev, unpack(taken) }
  slot.has, slot.object, progress = true, object, true
end

-- Gives the slot the batch it has: what remains of one, or all of it after a lost reply, a restart, a hold.
local function give_again(slot, object, tag)
  slot.has = true
  if reply_bytes <= 0 then
    return
  end
  local batch = call('LRANGE', slot.at .. worker_event, 0, -1)
  local entry = { slot.number, object, tag, last_of(object) }
  for i = #batch, 1, -1 do
    reply_bytes = reply_bytes - #batch[i]
    entry[#entry + 1] = batch[i]
  end
  entries[#entries + 1] = entry
  progress = true
end

-- COMMIT

-- All of the batch is delivered. Answers whether the slot goes on with its object.
local function commit_all(slot, object, last)
  -- Batch and tag go together: if the call fails further on, the slot is one that has nothing yet.
  call('DEL', slot.at .. worker_event, slot.at .. worker_event_id)
  call('SET', P .. object .. last_event_id, last)
  if slot.result == 'yield' and call('EXISTS', P .. object .. events) == 1 then
    hold_now(slot, object)
    return false
  end
  slot.prev = last
  return true
end

-- Writes the event behind the first `count` of the batch to the dead letters. Answers the error where that cannot be done.
local function bury(slot, object, prev, count, id, why, attempts)
  local event = call('LINDEX', slot.at .. worker_event, -1 - count)
  local dead = try('XADD', P .. events_dead, '*', 'id', id, 'prev', prev, 'object', object, 'event', event, 'error', why, 'attempts', attempts)
  return type(dead) == 'table' and dead.err or nil
end

-- A part of the batch is delivered. Answers whether the slot goes on with its object because nothing of the batch remains.
local function commit_part(slot, object, last)
  local result, count, rest = slot.result, tonumber(ARGV[slot.arg + 3]), ARGV[slot.arg + 4]
  local held_id = ARGV[slot.arg + 5]
  local prev = last ~= '' and last or last_of(object)
  if result == 'reject' then
    local id, why = ARGV[slot.arg + 5], ARGV[slot.arg + 6]
    local failed = bury(slot, object, prev, count, id, why, ARGV[slot.arg + 7])
    if failed then
      -- The event stays where it is, held, rather than be lost. Its hand-outs are kept: no tag may come twice.
      local _, handouts, _, crashes = numbers(ARGV[slot.arg + 1])
      local held_why = format('quarantine: %s: %s', events_dead, failed)
      result, rest, held_id = 'hold', 'inf', held_id_of(id, handouts, tonumber(ARGV[slot.arg + 7]), crashes, held_why)
    else
      count = count + 1
    end
  end
  if count > 0 then
    call('LTRIM', slot.at .. worker_event, 0, -1 - count)
  end
  if last ~= '' then
    call('SET', P .. object .. last_event_id, last)
  end
  if result == 'hold' then
    hold_batch(slot.at, object, rest == 'inf' and rest or now_ms + tonumber(rest), held_id)
    return false
  elseif rest == '' then
    call('DEL', slot.at .. worker_event_id)
    slot.prev = prev
    return true
  end
  call('SET', slot.at .. worker_event_id, rest)
  give_again(slot, object, rest)
  return false
end

local function go_on(slot, object)
  if reply_bytes <= 0 then
    return hold_now(slot, object)
  end
  local taken, wrong = take(slot, object)
  if not taken then
    quarantine(slot, object, wrong)
  elseif #taken == 0 then
    release(slot, object)
  else
    give(slot, object, slot.prev, taken)
  end
end

-- The batch of a slot whose result, if any, speaks of another one.
local function give_unknown(slot, tag)
  slot.has = true
  for _, object in ipairs(call('LRANGE', slot.at .. worker_object, 0, -1)) do
    if call('MGET', P .. object .. event_worker)[1] == slot.w then
      return give_again(slot, object, tag)
    end
  end
end

-- CLAIM

-- Makes the slot, in whose W:object the name is, the owner of `object`, and gives it what there is. Answers 'claimed', 'empty', or 'wrong'.
-- `owner` is what the owner's key tells.
local function own(slot, object, owner, last)
  if last and not id_of(last) or not last and call('EXISTS', P .. object .. last_event_id) == 1 then
    quarantine(slot, object, object .. last_event_id)
    return 'wrong'
  end
  local taken, wrong = take(slot, object)
  if not taken then
    quarantine(slot, object, wrong)
    return 'wrong'
  elseif #taken == 0 then
    return 'empty'
  elseif owner or call('SETNX', P .. object .. event_worker, slot.w) == 0 then
    -- A key that told nobody, and yet is there, has a wrong type: nobody may pass over what is held.
    if not owner and call('ZSCORE', P .. objects_held, object) then
      put_back(slot, object, taken)
      quarantine_held(slot, object)
      return 'wrong'
    end
    call('SET', P .. object .. event_worker, slot.w)
  end
  give(slot, object, last or '0', taken)
  claims = claims - 1
  return 'claimed'
end

-- The names in the slot's own W:object: moved there by a pop, or left there by a lost reply.
local function claim_taken(slot)
  local taken = call('LRANGE', slot.at .. worker_object, 0, -1)
  for i = #taken, 1, -1 do
    local object = taken[i]
    local found = call('MGET', P .. object .. event_worker, P .. object .. last_event_id)
    progress = true
    -- A name may be there twice, by two pops: the second one says nothing more.
    if object == '' or object == slot.object or found[1] and found[1] ~= slot.w then
      call('LREM', slot.at .. worker_object, 1, object)
    elseif slot.has or claims <= 0 or reply_bytes <= 0 then
      if found[1] then
        hold_now(slot, object)
      else
        stray(slot.at, object)
        markers_left = markers_left + 1
      end
    elseif own(slot, object, found[1], found[2]) == 'empty' then
      release(slot, object)
    end
  end
end

-- A pop has answered after its slot was given something else: what it moved must not wait behind that.
local function return_strays(slot)
  for _, object in ipairs(call('LRANGE', slot.at .. worker_object, 0, -1)) do
    if call('MGET', P .. object .. event_worker)[1] ~= slot.w then
      stray(slot.at, object)
      -- The empty name only wakes: it does not become a marker again.
      markers_left, progress = markers_left + (object == '' and 0 or 1), true
    end
  end
end

local due, due_at, due_end = {}, 0, false
local function next_due()
  if due_at == #due and not due_end then
    due, due_at = call('ZRANGE', P .. objects_held, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, claims), 0
    due_end = #due == 0
  end
  if due_end then
    return nil
  end
  due_at = due_at + 1
  return due[due_at]
end

-- A held batch, handed out once more.
local function claim_batch(slot, object, first, handouts, attempts, crashes)
  local batch = try('LRANGE', P .. object .. events_held, 0, -1)
  local last = try('GET', P .. object .. last_event_id)
  local wrong = is_wrong_type(batch) and events_held or is_wrong_type(last) and last_event_id or last and not id_of(last) and last_event_id
  if wrong or #batch == 0 then
    local why = quarantined_by(object .. (wrong or events_held))
    call('ZADD', P .. objects_held, 'inf', object)
    call('SET', P .. object .. events_held_id, held_id_of(first, handouts, attempts, crashes, why))
    quarantined[#quarantined + 1] = object
    quarantined[#quarantined + 1] = why
    return 'dropped'
  end
  local tag = tag_of(first, handouts + 1, tonumber(attempts), tonumber(crashes))
  call('LPUSH', slot.at .. worker_object, object)
  call('ZREM', P .. objects_held, object)
  call('RENAME', P .. object .. events_held, slot.at .. worker_event)
  call('DEL', P .. object .. events_held_id)
  call('MSET', P .. object .. event_worker, slot.w, slot.at .. worker_event_id, tag)
  give_again(slot, object, tag)
  claims = claims - 1
  return 'claimed'
end

-- Claims one due held object. Answers 'claimed', 'dropped', or nil where none is due.
local function claim_held(slot)
  local object = next_due()
  if not object then
    return nil
  end
  progress = true
  local found = call('MGET', P .. object .. event_worker, P .. object .. last_event_id, P .. object .. events_held_id)
  if not found[1] and call('EXISTS', P .. object .. event_worker) == 1 then
    quarantine_held(slot, object)
    return 'dropped'
  elseif found[1] ~= 'held' then
    call('ZREM', P .. objects_held, object)
    return 'dropped'
  end
  local first, handouts, attempts, crashes = string.match(found[3] or '', '^(%d+) (%d+) (%d+) (%d+)')
  if first and first ~= '0' then
    return claim_batch(slot, object, first, handouts, attempts, crashes)
  end
  -- Without numbers there must be no batch, for it would be passed over, and the next hold would write over it.
  if call('EXISTS', P .. object .. events_held) == 1 then
    call('ZADD', P .. objects_held, 'inf', object)
    quarantined[#quarantined + 1] = object
    quarantined[#quarantined + 1] = quarantined_by(object .. events_held_id) .. ' and tells no ids'
    return 'dropped'
  end
  call('LPUSH', slot.at .. worker_object, object)
  call('ZREM', P .. objects_held, object)
  call('DEL', P .. object .. events_held_id)
  local got = own(slot, object, found[1], found[2])
  if got == 'empty' then
    release(slot, object)
  end
  return got == 'claimed' and got or 'dropped'
end

-- The markers are read in chunks from the tail and trimmed by as many as were used.
local chunk, chunk_found, chunk_at, chunk_size, used = {}, {}, 0, 0, 0
local function trim_markers()
  if used > 0 then
    call('LTRIM', P .. objects_with_events, 0, -1 - used)
    markers_left = markers_left - used
    progress, used = true, 0
  end
end

local function next_marker()
  if chunk_at == 0 then
    trim_markers()
    -- A run of markers that lead nowhere is passed over in larger and larger strides.
    chunk_size = math.min(math.max(chunk_size * 2, claims), 512, markers_max, markers_left)
    if chunk_size <= 0 then
      return nil
    end
    chunk = call('LRANGE', P .. objects_with_events, -chunk_size, -1)
    local keys = {}
    for i, object in ipairs(chunk) do
      keys[2 * i - 1] = P .. object .. event_worker
      keys[2 * i] = P .. object .. last_event_id
    end
    chunk_found, chunk_at = call('MGET', unpack(keys)), #chunk
  end
  local object, owner, last = chunk[chunk_at], chunk_found[2 * chunk_at - 1], chunk_found[2 * chunk_at]
  chunk_at, used, markers_max = chunk_at - 1, used + 1, markers_max - 1
  return object, owner, last
end

-- Claims the object of one marker. Answers 'claimed', 'dropped', or nil where there is no marker to look at.
local function claim_marker(slot)
  local object, owner, last = next_marker()
  if not object then
    return nil
  elseif object == '' or owner or met[object] then
    return 'dropped'
  end
  met[object] = true
  call('LPUSH', slot.at .. worker_object, object)
  local got = own(slot, object, owner, last)
  if got == 'empty' then
    call('LREM', slot.at .. worker_object, 1, object)
  end
  return got == 'claimed' and got or 'dropped'
end

-- Held objects and markers in turn, one and one; where one side has nothing, the other goes on.
local function claim(slot)
  local without = 0
  while without < 2 and claims > 0 and reply_bytes > 0 and not slot.has do
    local got
    if from == 'held' then
      got, from = claim_held(slot), 'markers'
    else
      got = claim_marker(slot)
      -- A marker that led nowhere does not use up the turn of the markers.
      from = got == 'dropped' and 'markers' or 'held'
    end
    without = got and 0 or without + 1
  end
end

-- THE CALL

local slots, tag_keys, looks = {}, {}, {}
local width = { free = 0, look = 0, done = 3, yield = 3, part = 5, hold = 6, reject = 8 }
local i = SLOT_ARGS
while ARGV[i] do
  local w = name .. '.' .. ARGV[i]
  local slot = { number = ARGV[i], w = w, at = P .. WORKER .. w, result = ARGV[i + 1], arg = i + 2 }
  if slot.result == 'look' then
    looks[#looks + 1] = slot
  else
    slots[#slots + 1] = slot
    tag_keys[#tag_keys + 1] = slot.at .. worker_event_id
  end
  i = i + 2 + width[slot.result]
end

local function advance()
  local tags = #tag_keys > 0 and call('MGET', unpack(tag_keys)) or {}
  local going_on = {}
  for n, slot in ipairs(slots) do
    local tag = tags[n]
    if tag and slot.result ~= 'free' and ARGV[slot.arg + 1] == tag then
      local object, last = ARGV[slot.arg], ARGV[slot.arg + 2]
      local all = slot.result == 'done' or slot.result == 'yield'
      progress = true
      if all and commit_all(slot, object, last) or not all and commit_part(slot, object, last) then
        going_on[#going_on + 1] = slot
      end
    elseif tag then
      give_unknown(slot, tag)
    end
  end
  for _, slot in ipairs(going_on) do
    go_on(slot, ARGV[slot.arg])
  end

  for _, slot in ipairs(looks) do
    return_strays(slot)
  end
  local taken_keys = {}
  for _, slot in ipairs(slots) do
    if not slot.has then
      taken_keys[#taken_keys + 1] = slot.at .. worker_object
    end
  end
  if #taken_keys > 0 and call('EXISTS', unpack(taken_keys)) > 0 then
    for _, slot in ipairs(slots) do
      if not slot.has then
        claim_taken(slot)
      end
    end
  end
  for _, slot in ipairs(slots) do
    claim(slot)
  end
end

-- Whatever happens in between, ids that were given and markers that were used are written down.
local claims_wanted = claims > 0
local done, failed = pcall(advance)
trim_markers()
if id_of(counter_text) ~= counter then
  call('SET', P .. next_event_id, format('%.0f', counter))
end
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
