-- events: more events of an object, into the slot's batch and back.
-- An entry of the reply is {number, object, tag, prev, event…}.
local EVENTS_FROM, byte = 5, string.byte
-- The most events that a slot takes at once. All of them may have to go back. If each has 1 MiB,
-- Redis needs about 6 ms for each.
local AT_ONCE_MAX = 32

-- Copies the events that fit into the entry. Returns how many fit, the bytes of the batch then, and
-- the bytes of the longest event.
local function copy_fitting(entry, at, events, bytes, longest)
  local bytes_max = call.bounds.batch_bytes
  for k = 1, #events do
    local event = events[k]
    if bytes >= bytes_max or byte(event) == 0 then
      return k - 1, bytes, longest
    end
    local size = #event
    bytes = bytes + size
    entry[at + k] = event
    if size > longest then
      longest = size
    end
  end
  return #events, bytes, longest
end

-- Puts the events from the position `first` on back into the queue, the newest first. If the user
-- has lost the right to RPUSH, they go back through the batch, and the function raises.
local function push_back(queue, batch, events, first)
  local back = {}
  for k = #events, first, -1 do
    back[#back + 1] = events[k]
    call.back_left, call.back_bytes_left = call.back_left - 1, call.back_bytes_left - #events[k]
  end
  local pushed = redis_try('RPUSH', queue, unpack(back))
  if type(pushed) == 'table' then
    redis_call('LPUSH', batch, unpack(events, first))
    for _ = first, #events do
      redis_call('LMOVE', batch, queue, 'LEFT', 'RIGHT')
    end
    error(pushed)
  end
end

-- Takes further events from the queue into the entry, until the batch is full. Stops before an event
-- that begins with a NUL, because it may be a reference (objects/keyed.lua). Returns the number of events
-- of the entry, the events that were taken last, and how many of these fit.
local function read(entry, queue, batch_max)
  local n, bytes, batch_bytes, events, fit = 1, #entry[EVENTS_FROM], call.bounds.batch_bytes, {}, 0
  local longest, bytes_first = math.max(bytes, 1), bytes
  while n < batch_max and bytes < batch_bytes do
    -- The size of an event is known only after the event is taken. So the next events are assumed
    -- to be as long as the longest so far, and events that do not fit are put back.
    local guess = math.floor((batch_bytes - bytes) / longest)
    local want = math.min(batch_max - n, math.max(guess, 1), AT_ONCE_MAX)
    local taken = redis_call('RPOP', queue, ids.text(want))
    if not taken then
      break
    end
    events = taken
    fit, bytes, longest = copy_fitting(entry, n + EVENTS_FROM - 1, events, bytes, longest)
    n = n + fit
    if fit < want then
      break
    end
  end
  budget.bytes_left = budget.bytes_left - (bytes - bytes_first)
  return n, events, fit
end

-- Moves further events of the object from its queue into the slot's batch. Both keys are lists, because
-- the first event was moved from one to the other. One command writes all events into the batch, so the
-- right to use it for this batch is looked at before events are taken. If the Redis user has lost a right,
-- the function raises. The entry then has exactly the events of the batch.
local function take(slot, entry)
  if call.back_left <= 0 or call.back_bytes_left <= 0 then
    return
  end
  if not redis.acl_check_cmd('LPUSH', slot.batch_key, 'v') then
    error({ err = 'NOPERM the Redis user has lost the right to LPUSH to ' .. slot.batch_key })
  end
  local queue, batch_max = P .. entry[2] .. K.events, call.bounds.batch_events
  if call.limited then
    batch_max = math.min(batch_max, 1 + rare.share_limits.events_left(entry[2]))
  end
  local n, events, fit = read(entry, queue, batch_max)
  if n > 1 then
    redis_call('LPUSH', slot.batch_key, unpack(entry, EVENTS_FROM + 1))
  end
  if fit < #events then
    push_back(queue, slot.batch_key, events, fit + 1)
  end
  rare.spending.events(n - 1)
  if call.took and n > 1 then
    rare.share_limits.took(entry[2], n - 1)
  end
end

-- Puts the events of the entry back into the object's queue, as if they had not been taken.
local function put_back(slot, entry)
  for k = #entry, EVENTS_FROM, -1 do
    redis_call('RPUSH', P .. entry[2] .. K.events, entry[k])
  end
  redis_call('DEL', slot.batch_key)
end

-- Ends a claim whose name could not be written into the slot's list: `put` is the error. If the
-- list is lost, a new one begins.
local function put_name_again(slot, entry, put)
  if slot.left and redis_call('EXISTS', slot.objects_key) == 0 then
    put = redis_try('LPUSH', slot.objects_key, entry[2])
  end
  if type(put) == 'table' then
    put_back(slot, entry)
    error(put)
  end
end

return { take = take, put_name_again = put_name_again }
