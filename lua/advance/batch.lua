-- batch: more events of an object, into the slot's batch and back.
-- An entry of the reply is {number, object, tag, prev, event…}.
-- Uses: aside.put aside.wrong_of ids.after ids.text keyed.tag_of keyed.take limits.events_left
-- Uses: limits.took pauses.pause results.let_go state.guard
local EVENTS_FROM, byte = 5, string.byte
-- The events that this call may still put back, and their bytes.
local back_left, back_bytes_left = 2048, 4194304

-- Counts events that the call has taken. After the last event that the call may take, the reply
-- counts as full.
local function count(events)
  C.events_left = C.events_left - events
  if C.events_left <= 0 then
    C.bytes_left = math.min(C.bytes_left, 0)
  end
end

-- Moves further events of the object from its queue into the slot's batch, until the batch is full.
-- Stops before an event that begins with a NUL, because it may be a reference (advance/keyed.lua).
-- Both keys are lists, because the first event was moved from one to the other. If Redis refuses a
-- command because its user has lost a right, the function raises. The entry then has exactly the
-- events of the batch.
local function take_more(i, entry)
  local queue, batch = P .. entry[2] .. K.events, C.base[i] .. K.worker_event
  local batch_max, batch_bytes = tonumber(ARGV[4]), tonumber(ARGV[5])
  local n, bytes = 1, #entry[EVENTS_FROM]
  if C.limited then
    batch_max = math.min(batch_max, n + M.limits.events_left(entry[2]))
  end
  if back_left <= 0 or back_bytes_left <= 0 then
    return
  end
  local longest = math.max(bytes, 1)
  while n < batch_max and bytes < batch_bytes do
    -- The size of an event is known only after the event is taken. So the next events are assumed
    -- to be as long as the longest so far, and events that do not fit are put back.
    local guess = math.floor((batch_bytes - bytes) / longest)
    local want = math.min(batch_max - n, math.max(guess, 1), 16 + 4 * n)
    local more = call('RPOP', queue, M.ids.text(want))
    if not more then
      break
    end
    local got, fit, bytes_before, at = #more, 0, bytes, n + EVENTS_FROM - 1
    for k = 1, got do
      local event = more[k]
      if bytes >= batch_bytes or byte(event) == 0 then
        break
      end
      local size = #event
      fit = k
      bytes = bytes + size
      entry[at + k] = event
      if size > longest then
        longest = size
      end
    end
    n = n + fit
    local pushed = fit > 0 and try('LPUSH', batch, unpack(more, 1, fit))
    local is_refused = type(pushed) == 'table'
    C.bytes_left = C.bytes_left - (bytes - bytes_before)
    local back = {}
    for k = got, is_refused and 1 or fit + 1, -1 do
      back[#back + 1] = more[k]
      back_left, back_bytes_left = back_left - 1, back_bytes_left - #more[k]
      entry[at + k] = nil
    end
    if back[1] then
      call('RPUSH', queue, unpack(back))
    end
    if is_refused then
      error(pushed)
    end
    if fit < want then
      break
    end
  end
  count(n - 1)
  if C.took and n > 1 then
    M.limits.took(entry[2], n - 1)
  end
end

-- Puts the events of the entry back into the object's queue, as if they had not been taken.
local function put_back(i, entry)
  for k = #entry, EVENTS_FROM, -1 do
    call('RPUSH', P .. entry[2] .. K.events, entry[k])
  end
  call('DEL', C.base[i] .. K.worker_event)
end

-- Lets the slots go on with the objects in `left`, as far as these objects have more events.
local function go_on(n)
  for i = 1, n do
    local object, event = not C.failed and C.left[i], nil
    local is_over = object and C.limited and M.limits.events_left(object) < 1 and call('EXISTS', P .. object .. K.events) == 1
    if object and (C.bytes_left <= 0 or is_over) then
      M.results.let_go(i, object)
      C.left[i] = nil
    elseif object and C.rules_next and M.pauses.pause(i, object, nil, 'list') then
      C.left[i] = nil
    elseif object then
      event = try('LMOVE', P .. object .. K.events, C.base[i] .. K.worker_event, 'RIGHT', 'LEFT')
    end
    local got = event
    if type(event) == 'string' and byte(event) == 0 then
      event, got = M.keyed.take(i, object, event)
    end
    if type(event) == 'string' then
      local tag = M.keyed.tag_of(i, object, M.ids.text(M.ids.after(C.counter, 1)))
      local entry, s = { ARGV[C.arg[i] - 2], object, tag, C.prev[i] or ARGV[C.arg[i] + 2], event }, #C.to_set
      C.entries[#C.entries + 1], C.busy[i], C.left[i] = entry, true, nil
      C.to_set[s + 1], C.to_set[s + 2] = C.base[i] .. K.worker_event_id, tag
      C.bytes_left, C.progress = C.bytes_left - #event, true
      -- The first event of a batch takes as much time as four later ones, so it counts as four.
      count(4)
      if C.took then
        M.limits.took(object, 1)
      end
      if not C.key[i] then
        M.state.guard(take_more, i, entry)
      end
      -- The counter rises even if `take_more` has failed, so that no id is given twice.
      C.counter = M.ids.after(C.counter, #entry - EVENTS_FROM + 1)
    elseif got == 'wrong' or got == 'postponed' then
      C.left[i] = nil
    elseif event then
      C.left[i] = nil
      M.aside.put(i, object, M.aside.wrong_of(i, object, event))
    end
  end
end

return { count = count, go_on = go_on, take_more = take_more, put_back = put_back }
