-- usual: the usual path of advance; what it does not take goes on with advance.lua.
-- This file stands at the top of the script, before the modules. The two share what is local here.
local args = ARGV
local name, token = args[2], args[3]
local SLOT_ARGS, LOG_ARGS = 13, 3
-- A call with more arguments of slots goes to the modules at once. It is likely to need them, and
-- the look would be in vain.
local ARGS_MAX = 20

local lease = call('GET', KEYS[1])
local counter_text, soonest, rules_next, markers

-- A call takes the usual path if two things hold. At most one slot takes an object, which a pop has
-- moved into its list and which has one event. All other slots have delivered their whole batches,
-- and their objects have no more events. Every condition is read before the first write. If one
-- does not hold, the path ends, and the modules do the whole call. The code makes no functions and
-- few tables: these are most of what a call costs.
repeat
  if not lease or string.sub(lease, 1, #token) ~= token then
    break
  end
  -- What every call reads. A shared key of a wrong type fails here, before anything is written.
  counter_text, soonest = call('GET', P .. K.next_event_id), call('ZRANGE', P .. K.objects_held, 0, 0, 'WITHSCORES')
  rules_next, markers = call('HGET', P .. K.event_rules, 'next'), call('LLEN', P .. K.objects_with_events)
  local claims, highest = tonumber(args[7]), tonumber(args[11])
  local digits = counter_text and #counter_text <= 16 and string.find(counter_text, '^%d+$')
  local counter = digits and tonumber(counter_text)
  if not counter or counter < highest or counter + 1024 * tonumber(args[4]) > 9007199254740991
    or rules_next or args[SLOT_ARGS] == 'log' or args[10] ~= '0' or claims > 1 and markers > 0 or args[SLOT_ARGS + ARGS_MAX] then
    break
  end
  local due_ms = -1
  if soonest[2] and soonest[2] ~= 'inf' then
    local time = call('TIME')
    due_ms = tonumber(soonest[2]) - tonumber(time[1]) * 1000 - math.floor(tonumber(time[2]) / 1000)
    if due_ms <= 0 then
      break
    end
  end

  -- The slots: `NUMBER free`, `NUMBER done OBJECT TAG LAST`.
  local base, at, done_at, tags, queues, lists = P .. K.WORKER .. name .. '.', SLOT_ARGS, {}, {}, {}, {}
  while args[at] do
    local keys = base .. args[at]
    tags[#tags + 1] = keys .. K.worker_event_id
    if args[at + 1] == 'free' then
      lists[#lists + 1] = keys .. K.worker_object
      at = at + 2
    elseif args[at + 1] == 'done' then
      done_at[#tags] = at
      queues[#queues + 1] = P .. args[at + 2] .. K.events
      at = at + 5
    else
      break
    end
  end
  if args[at] then
    break
  end
  local found, is_usual = tags[1] and call('MGET', unpack(tags)) or tags, true
  for i = 1, #tags do
    local done = done_at[i]
    -- A tag with a blank is that of events that have failed, or were in hand before.
    is_usual = is_usual and (done and found[i] == args[done + 3] and not string.find(found[i], ' ', 1, true) or not done and not found[i])
  end
  if not is_usual or queues[1] and call('EXISTS', unpack(queues)) > 0 then
    break
  end

  -- What a pop has moved: one object, with one event, that nobody owns.
  local list, object
  if lists[1] and (not lists[2] or call('EXISTS', unpack(lists)) > 0) then
    for i = 1, #lists do
      local names = call('LRANGE', lists[i], 0, 1)
      is_usual = is_usual and not (names[1] and object or names[2])
      if names[1] then
        list, object = lists[i], names[1]
      end
    end
  end
  -- While markers are left, the other slots have objects to claim.
  if not is_usual or markers > 0 and claims > (object and 1 or 0) then
    break
  end
  local queue, owner_key, batch, last
  if object then
    if object == '' or string.byte(object) == 123 or claims < 1 then
      break
    end
    local last_key = P .. object .. K.last_event_id
    queue, owner_key = P .. object .. K.events, P .. object .. K.event_worker
    batch = string.sub(list, 1, -1 - #K.worker_object) .. K.worker_event
    last = call('MGET', last_key)[1]
    -- An id above the counter was given before: the counter is from an earlier state of Redis.
    if last and (#last > 16 or not string.find(last, '^%d+$') or tonumber(last) > counter)
      or call('EXISTS', owner_key, batch, last and batch or last_key) > 0 or try('LLEN', queue) ~= 1 then
      break
    end
  end

  -- The names leave their lists. That alone can fail, so it comes first, and what has left comes
  -- back.
  local failed = false
  for i = 1, #tags do
    local done = done_at[i]
    local removed = done and not failed and try('LREM', base .. args[done] .. K.worker_object, 1, args[done + 2])
    if type(removed) == 'table' then
      failed = true
      for k = 1, i - 1 do
        if done_at[k] then
          call('LPUSH', base .. args[done_at[k]] .. K.worker_object, args[done_at[k] + 2])
        end
      end
    end
  end
  if failed then
    break
  end
  -- All other writes come together: batches, tags and owners go, last ids are set.
  local gone, set, entries, is_full = {}, {}, {}, false
  for i = 1, #tags do
    local done = done_at[i]
    if done then
      local o = args[done + 2]
      gone[#gone + 1] = base .. args[done] .. K.worker_event
      gone[#gone + 1] = tags[i]
      gone[#gone + 1] = P .. o .. K.event_worker
      set[#set + 1] = P .. o .. K.last_event_id
      set[#set + 1] = args[done + 4]
    end
  end
  if gone[1] then
    call('DEL', unpack(gone))
  end
  if object then
    local event = call('LMOVE', queue, batch, 'RIGHT', 'LEFT')
    local number, id = string.sub(list, #base + 1, -1 - #K.worker_object), string.format('%.0f', counter + 1)
    entries[1], is_full = { number, object, id, last or '0', event }, #event >= tonumber(args[6])
    set[#set + 1] = owner_key
    set[#set + 1] = name .. '.' .. number
    set[#set + 1] = base .. number .. K.worker_event_id
    set[#set + 1] = id
    set[#set + 1] = P .. K.next_event_id
    set[#set + 1] = id
  end
  if set[1] then
    call('MSET', unpack(set))
  end
  local more = claims > 0 and (gone[1] or object) and (markers > 0 or is_full)
  return { 'ok', due_ms, more and 1 or 0, args[9], entries, {} }
until true
