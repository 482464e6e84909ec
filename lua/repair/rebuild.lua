-- rebuild: puts right what only an index knows: names, groups, schedules, cron jobs and shared keys.

-- The most entries of a queue, and about the most bytes, that are read to find a reference.
local ENTRIES_MAX, BYTES_MAX = 1000, 1048576
local NEVER_MS, MARKS_MAX = 9007199254740991, 1000

-- Raises the counter of ids above `known`, if it is not there yet. No id may be given twice.
local function rise(known, whose)
  local key = P .. K.next_event_id
  local given = ids.parse(redis_call('GET', key) or '') or 0
  if known > given then
    local next_id = ids.text(rare.jump.beyond(known))
    rare.mend.step('ids', K.next_event_id .. ' rises from ' .. ids.text(given) .. ' to ' .. next_id .. ', above ' .. whose, function()
      redis_call('SET', key, next_id)
    end)
  end
end

-- Returns whether the queue has a reference to the schedule that counts for this score, among its oldest
-- entries or perhaps behind them.
local function is_referred(object, key, score)
  local queue, bytes = P .. object .. K.events, 0
  local count = redis_call('LLEN', queue)
  for i = 1, math.min(count, ENTRIES_MAX) do
    local text = redis_call('LINDEX', queue, -i)
    local time_us, of = rare.schedules.referred(text)
    if of == key and rare.schedules.counts(score, time_us) then
      return true
    end
    bytes = bytes + #text
    rare.mend.spend(1, #text)
    if bytes >= BYTES_MAX then
      return i < count
    end
  end
  return count > ENTRIES_MAX
end

-- Puts a schedule right. `others.due_ms`: the due time for schedules that have lost it, or nil.
local function mend_schedule(subject, others)
  local object, key = rare.schedules.parse(subject.name)
  local set = P .. K.events_scheduled
  if not object or object == '' or rare.names.is_foreign(object) then
    return rare.mend.leave(K.events_scheduled .. ' has a member that is no object and key: remove it')
  end
  local hash = P .. object .. K.events_scheduled_of
  local found, queue = redis_call('TYPE', hash).ok, redis_call('TYPE', P .. object .. K.events).ok
  if found ~= 'hash' and found ~= 'none' or queue ~= 'list' and queue ~= 'none' then
    return rare.mend.leave(object .. ' has a key of a wrong type: see the repair of the object')
  end
  local score, has_event = redis_call('ZSCORE', set, subject.name), redis_call('HEXISTS', hash, key) == 1
  local function put(due, what)
    rare.mend.step('schedule', what, function()
      redis_call('ZADD', set, due, subject.name)
      redis_call('ZADD', P .. K.events_scheduled_wake, '0', 'wake')
    end)
  end
  if not has_event then
    return score and rare.mend.step('removed', 'its due time is removed, because it has no event', function()
      redis_call('ZREM', set, subject.name)
    end)
  end
  local due, is_queued = nil, false
  if score then
    due, is_queued = rare.schedules.due_of(score)
  end
  if due and not is_queued and math.abs(tonumber(due) or NEVER_MS + 1) <= NEVER_MS then
    return
  end
  if is_queued then
    return not is_referred(object, key, score) and put(rare.time.now_ms(), 'was queued, but the queue has lost it: it is due now')
  elseif others.due_ms then
    put(others.due_ms, 'has lost its due time: it is due at ' .. others.due_ms .. ' (ms since 1970)')
  else
    -- A reference in the queue does not tell that the event is queued: only the lost score tells whether
    -- the schedule was replaced after that.
    rare.mend.leave('has lost its due time: schedule it again, cancel it, or give --schedules-due TIME for all such schedules')
  end
end

-- Puts the next tick of a cron job right. The score only says when a process looks at the job.
local function mend_cron(subject)
  local name, ticks = subject.name, P .. K.events_cron_next
  local value, tick = redis_call('HGET', P .. K.events_cron, name), redis_call('ZSCORE', ticks, name)
  local job = value and rare.cron.parse(value)
  if value and not job then
    rare.mend.leave(K.events_cron .. ' has a value that is no cron job: set or remove it')
  elseif tick and (not value or job.paused) then
    rare.mend.step('removed', 'its next tick is removed, because ' .. (value and 'it is paused' or 'there is no such job'), function()
      redis_call('ZREM', ticks, name)
    end)
  elseif job and not tick and not job.paused then
    rare.mend.step('cron', 'has a next tick again: a worker process computes its time', function()
      redis_call('ZADD', ticks, '0', name)
      redis_call('ZADD', P .. K.events_scheduled_wake, '0', 'wake')
    end)
  end
end

-- Puts a worker name into one of the two sets of names.
local function mend_name(subject)
  local name, watched, departed = subject.name, P .. K.event_workers_watched, P .. K.event_workers_departed
  local value = redis_call('HGET', P .. K.event_workers, name)
  if not value then
    return
  end
  local slots = rare.registry.parse(value)
  if slots < 1 then
    return rare.mend.leave('its value in ' .. K.event_workers .. ' is not slots, token and time: start a worker with this name')
  end
  local in_watched, in_departed = redis_call('ZSCORE', watched, name), redis_call('ZSCORE', departed, name)
  if not in_watched and not in_departed or in_watched and in_departed then
    rare.mend.step('name', 'is in ' .. K.event_workers_watched .. ', so that sweeps look at it', function()
      rare.registry.watch(name, rare.time.now_ms())
    end)
  end
end

-- Lets workers take the names of a group again.
local function mend_group(subject)
  local key = rare.group.key(subject.name)
  local found = redis_call('TYPE', key).ok
  if found ~= 'list' then
    return found ~= 'none' and rare.mend.leave('its list is a ' .. found .. ': move it away')
  elseif not redis_call('ZSCORE', P .. K.event_groups, subject.name) then
    local times = rare.group.times_of(redis_call('HGET', P .. K.event_groups_times, subject.name))
    local count = math.max(redis_call('LLEN', key) - (times and times.marks or 0), 0)
    rare.mend.step('group', 'has ' .. count .. ' names that are grouped: it is in ' .. K.event_groups .. ' again', function()
      local waiting = ids.parse(redis_call('GET', P .. K.event_groups_waiting) or '') or 0
      redis_call('ZADD', P .. K.event_groups, rare.shares.first_pass(0), subject.name)
      redis_call('SET', P .. K.event_groups_waiting, waiting + count)
    end)
  end
end

-- Counts the names that are grouped, and lets groups have turns again that wait for a limit of
-- which nothing is known any more.
local function mend_groups()
  local groups = redis_call('ZRANGE', P .. K.event_groups, '0', rare.group.LISTS_MAX + 1, 'WITHSCORES')
  if #groups / 2 > rare.group.LISTS_MAX + 1 then
    return rare.mend.leave(K.event_groups .. ' has more groups than workers make: delete groups without a list')
  end
  local count, parked = 0, {}
  for at = 1, #groups, 2 do
    local group, score = groups[at], tonumber(groups[at + 1])
    local length, times = redis_try('LLEN', rare.group.key(group)), rare.group.times_of(redis_call('HGET', P .. K.event_groups_times, group))
    -- If the list was lost, its marks may still be counted.
    count = count + math.max((type(length) == 'number' and length or 0) - (times and times.marks or 0), 0)
    if not rare.shares.is_pass(score) then
      rare.mend.step('group', 'group ' .. group .. ' has turns again, as one of normal priority; its score in ' .. K.event_groups .. ' was ' .. groups[at + 1], function()
        redis_call('ZADD', P .. K.event_groups, rare.shares.first_pass(0), group)
      end)
    elseif score >= rare.shares.PARKED - rare.shares.CLASS then
      parked[#parked + 1], parked[#parked + 2] = string.format('%.17g', score - rare.shares.PARKED), group
    end
  end
  local stored = redis_call('GET', P .. K.event_groups_waiting) or '0'
  local known = ids.parse(stored)
  local least = count - rare.group.unknown_marks(redis_call('EXISTS', P .. K.event_groups_times) == 1, #groups / 2)
  if not known or known > count or known < least then
    rare.mend.step('group', K.event_groups_waiting .. ' is ' .. count .. ' again, the number of names in the lists of groups; it was ' .. stored, function()
      redis_call('SET', P .. K.event_groups_waiting, count)
    end)
  end
  if parked[1] and redis_call('EXISTS', P .. K.event_groups_blocked) == 0 then
    rare.mend.step('group', #parked / 2 .. ' groups have turns again, because no time is known at which a limit lets them go on', function()
      redis_call('ZADD', P .. K.event_groups, unpack(parked))
    end)
  end
end

-- Writes what all shares do.
local function mend_shares()
  local all, mode, most = redis_call('HGETALL', P .. K.event_shares), 0, 0
  for at = 1, #all, 2 do
    local prefix, parts = rare.shares.prefix_of(all[at])
    local share = (prefix or all[at] == '*') and rare.shares.parse(all[at + 1])
    if share then
      mode, most = math.max(mode, (share.in_flight or share.rate) and 2 or 1), math.max(most, parts or 0)
    else
      rare.mend.leave(K.event_shares .. ' has a field ' .. all[at] .. ' that is no share: delete that field, and set the share again')
    end
  end
  local key = P .. K.event_shares_summary
  local stored = redis_call('GET', key) or ''
  local due, epoch = string.format('%d %d', mode, most), rare.shares.epoch_of(stored)
  if (epoch and string.match(stored, '^%d %d+') or '0 0') ~= due then
    rare.mend.step('share', K.event_shares_summary .. ' begins with ' .. due .. ' again', function()
      if mode > 0 then
        redis_call('SET', key, due .. ' ' .. (epoch or ids.text(rare.time.now_ms())))
      else
        redis_call('DEL', key, P .. K.event_groups_turns, P .. K.event_shares_used, P .. K.objects_in_hand, P .. K.event_groups_blocked)
      end
    end)
  end
end

-- Writes the time at which workers look at the rules.
local function mend_rules()
  local all, stored = redis_call('HGETALL', P .. K.event_rules), nil
  for at = 1, #all, 2 do
    stored = all[at] == 'next' and all[at + 1] or stored
  end
  local soonest = rare.rules.next_of(all)
  local due = rare.rules.next_text(soonest)
  if stored ~= due then
    rare.mend.step('rules', K.event_rules .. ' says when rules are looked at next: ' .. (due or 'never'), function()
      rare.rules.write_next(soonest)
    end)
  end
end

-- Removes members of event.marks that are no marks.
local function mend_marks()
  local wrong = {}
  for _, member in ipairs(redis_call('ZRANGE', P .. K.event_marks, '0', MARKS_MAX - 1)) do
    wrong[#wrong + 1] = member ~= rare.marks.MET and not rare.marks.is_mark('\0t' .. member) and member or nil
  end
  if wrong[1] then
    rare.mend.step('removed', #wrong .. ' members of ' .. K.event_marks .. ' that are no marks', function()
      redis_call('ZREM', P .. K.event_marks, unpack(wrong))
    end)
  end
end

-- Puts the shared keys right.
local function mend_shared()
  mend_rules()
  mend_marks()
  mend_shares()
  mend_groups()
  local given = redis_call('GET', P .. K.next_event_id)
  if given and not ids.parse(given) then
    rare.mend.step('ids', K.next_event_id .. ' is a number again', function()
      redis_call('SET', P .. K.next_event_id, ids.text(rare.jump.beyond(0)))
    end)
  end
end

-- Counts an object as in hand, while shares are set.
local function count_in_hand(object)
  if redis_call('EXISTS', P .. K.event_shares) == 1 and not redis_call('ZSCORE', P .. K.objects_in_hand, object .. ':') then
    rare.mend.step('share', 'counts as in hand again', function()
      redis_call('ZADD', P .. K.objects_in_hand, '0', object .. ':')
    end)
  end
end

-- Gives each of these idempotency keys an end, and removes ends without an idempotency key.
local function mend_emitted(subject)
  local hash, ends = P .. K.events_emitted, P .. K.events_emitted_ends
  local is_there, ends_at = redis_call('HEXISTS', hash, subject.name) == 1, redis_call('ZSCORE', ends, subject.name)
  if is_there and not ends_at then
    rare.mend.step('emitted', 'its window ends in a day, because its end is lost', function()
      redis_call('ZADD', ends, rare.time.now_ms() + 86400000, subject.name)
    end)
  elseif ends_at and not is_there then
    rare.mend.step('removed', 'its end is removed, because there is no such idempotency key', function()
      redis_call('ZREM', ends, subject.name)
    end)
  end
end

return {
  rise = rise, schedule = mend_schedule, cron = mend_cron, name = mend_name, group = mend_group, shared = mend_shared,
  count_in_hand = count_in_hand, emitted = mend_emitted,
}
