-- batch: out of the queue, into the slot's hands, into the reply. An entry of the reply is {number, object, tag, prev, event…}.
local EVENTS_FROM = 5
-- Events that this call may still take. Behind them the reply counts as full.
local events_left = 4096

local function count_events(count)
  events_left = events_left - count
  if events_left <= 0 then
    reply_bytes = math.min(reply_bytes, 0)
  end
end

-- Moves the first event of `object` into the slot's empty batch. Answers the entry, still without tag and prev, or nil where there is no event, or
-- false and the key of a wrong type.
local function take_first(slot, object)
  local event = try('LMOVE', P .. object .. events, slot.batch, 'RIGHT', 'LEFT')
  if not event then
    return nil
  elseif is_wrong_type(event) then
    -- Raises where it is the batch that has a wrong type: that is the worker's own key, not the object's.
    call('LLEN', slot.batch)
    return false, object .. events
  end
  reply_bytes = reply_bytes - #event
  -- It takes as long as four that come with others.
  count_events(4)
  return { slot.number, object, '', '', event }
end

-- Moves what else there is, up to a batch. Both keys are lists: the first event went from one to the other.
local function take_more(slot, entry)
  local queue, batch = P .. entry[2] .. events, slot.batch
  local n, bytes = 1, #entry[EVENTS_FROM]
  local longest = math.max(bytes, 1)
  while n < batch_max and bytes < batch_bytes do
    -- Sizes are known only after taking: what is next is guessed to be as long as the longest so far, and what does not fit is put back.
    local guess = math.floor((batch_bytes - bytes) / longest)
    local want = math.min(batch_max - n, math.max(guess, 1), 16 + 4 * n)
    local more = call('RPOP', queue, text_of(want))
    if not more then
      break
    end
    local got, fit, bytes_before = #more, 0, bytes
    repeat
      fit, n = fit + 1, n + 1
      local event = more[fit]
      local size = #event
      bytes = bytes + size
      if size > longest then
        longest = size
      end
      entry[n + EVENTS_FROM - 1] = event
    until fit == got or bytes >= batch_bytes
    call('LPUSH', batch, unpack(more, 1, fit))
    reply_bytes = reply_bytes - (bytes - bytes_before)
    for i = got, fit + 1, -1 do
      call('RPUSH', queue, more[i])
    end
    if fit < want then
      break
    end
  end
  count_events(n - 1)
  return entry
end

-- Gives the slot what it took, under new ids.
local function give(slot, prev, entry)
  local tag = text_of(counter + 1)
  counter = counter + #entry - EVENTS_FROM + 1
  set_later(slot.tag, tag)
  entry[3], entry[4] = tag, prev
  entries[#entries + 1] = entry
  slot.has, slot.object, progress = true, entry[2], true
end
