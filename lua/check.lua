-- check: finds broken invariants at some objects, workers, worker names and shared keys.
--
-- Purpose   Looks at each subject at one moment. docs/design.md describes the invariants.
-- Keys      KEYS[1] event.workers (hash, read); it also routes the call
--           all other keys, spelled from the prefix: read
-- Arguments prefix
--           then for each subject:
--             kind  `object`, `worker`, `name`, `group`, `schedule`, `cron` or `shared`
--             name  the object, the worker id, the worker name, the group, the member of
--                   events.scheduled, or the cron job; '' for `shared`
--             hint  how to look for the cover of an object with events (I1):
--               covered   a marker, or the list of a group or of a worker, had the object a moment
--                         ago
--               counts    for `shared`: also compares the lengths of indexes
--               unknown   the caller knows of no marker or list with the object, but has not
--                         searched them all; a finding I1 or `foreign` is only a suspicion
--               searched  the caller has searched all markers and lists, in steps; the script looks
--                         again at both ends of the markers, and of the lists of the groups to
--                         which the object can belong. A finding that is the same as before the
--                         search is certain: no event came or went meanwhile
-- Replies   {'looked', findings, names}
--             findings  flat triples: the subject's position (from 1); `I1` to `I6`, `I8` to
--                       `I10`, `layout` or `foreign`; a text
--             names     objects in the lists of the workers, at most 1,000 of each worker
-- Keeps     writes nothing; checks I1 to I6, and I8 to I10
-- Cost      about 15 commands per subject; all rules, shares and groups for `shared`; LPOS over 2,000
--           names of up to 11 lists for `searched`

local workers_key = KEYS[1]
local subjects = {}
for at = 2, #ARGV, 3 do
  subjects[#subjects + 1] = {kind = ARGV[at], name = ARGV[at + 1], hint = ARGV[at + 2]}
end

local NAMES_MAX = 1000
local SLOTS_MAX = 65536

local findings, names, position = {}, {}, 0

-- Adds a finding; the parts of its text are joined.
local function find(invariant, ...)
  local text = {...}
  for at, part in ipairs(text) do
    if type(part) == 'number' then text[at] = string.format('%.0f', part) end
  end
  findings[#findings + 1] = position
  findings[#findings + 1] = invariant
  findings[#findings + 1] = table.concat(text)
end

-- Returns a whole number below 2^53; nil for any other text, and nil if there is no text.
local function whole(text)
  return text and ids.parse(text) or nil
end

local function type_of(key)
  return redis_call('TYPE', key).ok
end

-- Returns whether the key exists with this type. Another type is a finding.
local function expect(key, wanted)
  local found = type_of(key)
  if found ~= wanted and found ~= 'none' then
    find('layout', key, ' is a ', found, ', it should be a ', wanted)
  end
  return found == wanted
end

-- Returns whether a shared key exists with this type. A wrong type adds no finding here, because
-- the check of the subject `shared` adds it.
local shared_types = {}
local function shared(name, wanted)
  local found = shared_types[name]
  if not found then
    found = type_of(P .. name)
    shared_types[name] = found
  end
  return found == wanted
end

-- Returns the last id given; 0 if it is absent or invalid.
local function next_id()
  return shared(K.next_event_id, 'string') and whole(redis_call('GET', P .. K.next_event_id)) or 0
end

-- Returns slots and token of a registration; nil if it is absent or invalid.
local function registration(value)
  local slots, token = rare.registry.parse(value or '')
  if slots >= 1 and slots <= SLOTS_MAX then return slots, token end
  return nil
end

-- Returns whether the worker is a slot of a registered name.
local function registered(worker)
  local name, slot = rare.worker.parse(worker)
  if not name or not shared(K.event_workers, 'hash') then return false end
  local slots = registration(redis_call('HGET', workers_key, name))
  return slots ~= nil and slot < slots
end

-- Returns whether the name of the worker has lost its registration, but has a lease.
local function registers_again(worker)
  local name = rare.worker.parse(worker)
  local is_lost = shared(K.event_workers, 'none') or shared(K.event_workers, 'hash') and name and not redis_call('HGET', workers_key, name)
  return name and is_lost and type_of(P .. K.WORKER .. name .. K.worker_lease) == 'string'
end

-- Returns whether the value is among the first or the last NAMES_MAX items of the list.
local function list_has(key, value)
  return type_of(key) == 'list' and (redis_call('LPOS', key, value, 'RANK', -1, 'MAXLEN', NAMES_MAX) ~= false
    or redis_call('LPOS', key, value, 'MAXLEN', NAMES_MAX) ~= false)
end

-- Returns whether the object is grouped. Workers with different depths put an object
-- in different groups. A list whose group is not in event.groups does not count: no worker takes
-- names from that list.
local function is_grouped(object)
  if not shared(K.event_groups, 'zset') then return false end
  local groups, seen = { object, rare.group.REST }, {}
  for depth = 1, rare.group.DEPTH_MAX do groups[#groups + 1] = rare.group.of(object, depth) end
  for _, group in ipairs(groups) do
    if not seen[group] and redis_call('ZSCORE', P .. K.event_groups, group) and list_has(rare.group.key(group), object) then return true end
    seen[group] = true
  end
  return false
end

-- Returns whether a marker, the list of a group or a worker's list has the object: the hint says
-- so, or the name is found near one of the two ends of the markers or of a group's list.
local function covered(subject)
  return subject.hint == 'covered'
    or subject.hint == 'searched' and (list_has(P .. K.objects_with_events, subject.name) or is_grouped(subject.name))
end

-- Checks the ids of a batch against the last id of the object and the counter (I5).
local function check_ids(where, first, count, last)
  local given = next_id()
  if last and first <= last then
    find('I5', where, ' begins with id ', first, ', but id ', last, ' of the object is delivered already')
  end
  if ids.after(first, count - 1) > given then
    find('I5', where, ' has ids up to ', ids.after(first, count - 1), ', but ', K.next_event_id, ' is ', given, ': ids would be given twice')
  end
end

-- Returns the last id of an object; nil if it is absent or invalid.
local function last_of(object)
  local key = P .. object .. K.last_event_id
  return type_of(key) == 'string' and whole(redis_call('GET', key)) or nil
end

-- Returns whether a rule applies to the object. A lifted rule counts: it stays until all its
-- objects are woken. If the rules have a wrong type, the object counts as one with a rule.
local function has_rule(object)
  if not shared(K.event_rules, 'hash') then return not shared(K.event_rules, 'none') end
  for _, value in ipairs(redis_call('HMGET', P .. K.event_rules, unpack(rare.rules.fields_of(object)))) do
    if value then return true end
  end
  return false
end

-- Checks the owner against the worker's list and the sets of held objects (I2). Returns whether the
-- owner's list has the object.
local function check_owner(object, owner, in_held, in_paused)
  if owner == 'held' then
    if not in_held and not in_paused then
      find('I2', 'is held, but is neither in ', K.objects_held, ' nor in ', K.objects_paused, ': `seriatim repair` puts it back')
    elseif in_held and in_paused then
      find('I2', 'is held, but is in both ', K.objects_held, ' and ', K.objects_paused)
    elseif in_paused and not has_rule(object) then
      find('I2', 'is in ', K.objects_paused, ', but no rule is over it: nothing will wake it')
    end
    return false
  end
  local shown = owner or 'nobody'
  if in_held then find('I2', 'is in ', K.objects_held, ', but its owner is ', shown) end
  if in_paused then find('I2', 'is in ', K.objects_paused, ', but its owner is ', shown) end
  if not owner then return false end
  if not registered(owner) and registers_again(owner) then
    find('I2', 'its owner ', owner, ' is no slot of a name in ', K.event_workers, ', but a process with this name lives: its next renewal registers it again')
    return false
  elseif not registered(owner) then
    find('I2', 'its owner ', owner, ' is no slot of a name in ', K.event_workers, ': no process adopts it; if it is dead, `seriatim repair --dead-owner` frees its object')
    return false
  end
  local list = K.WORKER .. owner .. K.worker_object
  if list_has(P .. list, object) then
    local batch = P .. K.WORKER .. owner .. K.worker_event
    if type_of(P .. object .. K.events) == 'none' and type_of(batch) == 'none' and type_of(P .. K.WORKER .. owner .. K.worker_event_id) == 'none' then
      find('I10', 'its owner is ', owner, ', which has no event of it, and none is queued')
    end
    return true
  end
  find('I2', 'its owner is ', owner, ', but ', list, ' lacks it')
  return false
end

-- Checks the held batch against its numbers and the owner (I4, I5).
local function check_held(object, owner, has_batch, has_numbers, last)
  local count = has_batch and redis_call('LLEN', P .. object .. K.events_held) or 0
  local first
  if has_numbers then
    local numbers = redis_call('GET', P .. object .. K.events_held_id)
    first = whole((rare.tag.held_numbers(numbers)))
    if not first then find('layout', P, object, K.events_held_id, ' is not four numbers and a reason') end
  end
  if count > 0 and owner ~= 'held' then
    find('I4', 'has ', count, ' events in a held batch, but its owner is ', owner or 'nobody')
  elseif count > 0 and (first or 0) == 0 and (first or not has_numbers) then
    find('I4', 'has ', count, ' events in a held batch, but ', K.events_held_id, ' names no id for them')
  elseif count == 0 and (first or 0) > 0 then
    find('I4', K.events_held_id, ' names a held batch that begins with id ', first, ', but there is none')
  end
  if count > 0 and (first or 0) > 0 then check_ids('its held batch', first, count, last) end
end

-- Returns whether the first event of the object's batch, in hand or held, has failed before.
local function has_failed(object, owner)
  local key = owner == 'held' and P .. object .. K.events_held_id or P .. K.WORKER .. (owner or '') .. K.worker_event_id
  return type_of(key) == 'string' and rare.tag.has_failed(redis_call('GET', key))
end

-- Checks all keys of an object.
local function check_object(subject)
  local object = subject.name
  local base = P .. object
  local in_held = shared(K.objects_held, 'zset') and redis_call('ZSCORE', P .. K.objects_held, object)
  local in_paused = shared(K.objects_paused, 'zset') and redis_call('ZSCORE', P .. K.objects_paused, object)
  local queue = type_of(base .. K.events)
  if P == '' and queue ~= 'list' and queue ~= 'none' and not in_held and not in_paused and not covered(subject)
    and redis_call('EXISTS', base .. K.last_event_id, base .. K.event_worker, base .. K.events_held, base .. K.events_held_id) == 0 then
    -- Without a namespace, a key of another program may also end in `:events`.
    return find('foreign', base, K.events, ' is a ', queue)
  end
  local has = {}
  for _, key in ipairs(OBJECT_TYPES) do
    has[key[1]] = expect(base .. key[1], key[2])
  end
  local has_owner = has[K.event_worker]

  local last = nil
  if has[K.last_event_id] then
    last = whole(redis_call('GET', base .. K.last_event_id))
    local given = next_id()
    if not last then find('layout', base, K.last_event_id, ' is not an id')
    elseif last > given then
      find('I5', K.last_event_id, ' is ', last, ', but ', K.next_event_id, ' is ', given, ': ids would be given twice')
    end
  end
  local owner = has_owner and redis_call('GET', base .. K.event_worker)
  local in_hand = check_owner(object, owner, in_held, in_paused)
  local counts = shared(K.objects_in_hand, 'zset') and redis_call('ZSCORE', P .. K.objects_in_hand, object .. ':')
  if in_hand and shared(K.event_shares, 'hash') and not counts then
    find('layout', 'is in hand, but is not in ', K.objects_in_hand, ', by which limits count: set any share again')
  elseif counts and (not owner or owner == 'held') then
    find('layout', 'is in ', K.objects_in_hand, ', but no slot owns it, so limits count it for ever: `seriatim repair` removes it')
  end
  check_held(object, owner, has[K.events_held], has[K.events_held_id], last)
  if has[K.event_handled] and not has_owner then
    find('layout', K.event_handled, ' tells what handlers have finished, but no event of the object is in hand')
  end
  if has[K.event_errors] and not has_failed(object, owner) then
    find('layout', K.event_errors, ' tells how an event has failed, but the object has none in hand that has')
  end

  -- Calls claim all due held objects while no name is grouped.
  if in_held and tonumber(in_held) < 0 and shared(K.event_groups_waiting, 'string') and not covered(subject) then
    find('I1', 'is held and due, and its name was grouped, but no list of a group has it: it waits until no name is grouped')
  end
  if has[K.events] and not in_hand and not in_held and not in_paused and not covered(subject) then
    local behind = last and ' behind id ' or ''
    find('I1', 'has ', redis_call('LLEN', base .. K.events), ' events queued', behind, last or '', ', but no marker, no worker that has it, and is not held')
  end
end

-- Checks the batch of a worker against its object and its tag (I3, I4, I5).
local function check_worker(subject)
  local base = P .. K.WORKER .. subject.name
  local has_object = expect(base .. K.worker_object, 'list')
  local has_batch = expect(base .. K.worker_event, 'list')
  local has_tag = expect(base .. K.worker_event_id, 'string')
  local owned, seen = {}, {}
  for _, object in ipairs(has_object and redis_call('LRANGE', base .. K.worker_object, 0, NAMES_MAX - 1) or {}) do
    names[#names + 1] = object
    local key = P .. object .. K.event_worker
    if not seen[object] and not rare.names.is_foreign(object) and type_of(key) == 'string' and redis_call('GET', key) == subject.name then
      owned[#owned + 1] = object
    end
    seen[object] = true
  end
  local count = has_batch and redis_call('LLEN', base .. K.worker_event) or 0
  if count > 0 and #owned == 0 then
    find('I3', 'has a batch of ', count, ' events, but owns no object in ', K.WORKER, subject.name, K.worker_object)
  elseif #owned > 1 then
    find('I3', 'owns ', #owned, ' objects at once, ', owned[1], ' and ', owned[2], ' among them')
  end
  local first
  if has_tag then
    local tag, object = rare.tag.split(redis_call('GET', base .. K.worker_event_id))
    first = rare.tag.first_of(tag)
    if first and count > 0 and object and #owned == 1 and owned[1] ~= object then
      find('I3', 'has a batch of ', object, ', but owns ', owned[1])
    end
    if not first then find('layout', base, K.worker_event_id, ' is not an id and up to three counts')
    elseif count == 0 then find('I4', K.worker_event_id, ' names a batch that begins with id ', first, ', but there is none') end
  elseif count > 0 and type_of(base .. K.worker_event_id) == 'none' then
    find('I4', 'has a batch of ', count, ' events, but no ', K.worker_event_id, ' that names its id')
  end
  if expect(base .. K.worker_lost, 'list') then
    local lost, _, object = redis_call('LLEN', base .. K.worker_lost) - 1, rare.tag.split(redis_call('LINDEX', base .. K.worker_lost, '0'))
    if object then
      find('I3', K.WORKER, subject.name, K.worker_lost, ' has ', lost, ' events of ', object, ', because a key was lost: `seriatim repair` gives them back')
    else
      find('I3', K.WORKER, subject.name, K.worker_lost, ' has ', lost, ' events of an object that is not known, because a key was lost; perhaps that whose owner is ', subject.name)
    end
  end
  if first and count > 0 then check_ids('its batch', first, count, #owned == 1 and last_of(owned[1]) or nil) end
end

-- Returns whether a whole pass of `adopt` has put each name into event.workers.watched or
-- event.workers.departed.
local is_indexed
local function indexed()
  if is_indexed == nil then
    local pass = shared(K.meta, 'hash') and redis_call('HMGET', P .. K.meta, 'names.indexed', 'names.cursor') or {}
    local is_set = function(name) return shared(name, 'zset') or shared(name, 'none') end
    is_indexed = pass[1] and not pass[2] and is_set(K.event_workers_watched) and is_set(K.event_workers_departed)
  end
  return is_indexed
end

-- Checks that the lease and the registration have the same token (I6, as far as Redis shows it).
-- Checks that the name is in exactly one of event.workers.watched and event.workers.departed.
local function check_name(subject)
  local value = shared(K.event_workers, 'hash') and redis_call('HGET', workers_key, subject.name)
  local lease_key = P .. K.WORKER .. subject.name .. K.worker_lease
  local has_lease = expect(lease_key, 'string')
  if not value then return end
  local slots, token = registration(value)
  if not slots then
    return find('layout', 'its value in ', K.event_workers, ' is not slots, token and time')
  end
  if indexed() then
    local is_watched = redis_call('ZSCORE', P .. K.event_workers_watched, subject.name)
    local is_departed = redis_call('ZSCORE', P .. K.event_workers_departed, subject.name)
    if is_watched and is_departed then
      find('layout', 'it is in ', K.event_workers_watched, ' and in ', K.event_workers_departed)
    elseif not is_watched and not is_departed then
      find('layout', 'it is in neither ', K.event_workers_watched, ' nor ', K.event_workers_departed, ': nobody looks at it')
    end
  end
  local holder = has_lease and rare.lease.token_of(redis_call('GET', lease_key))
  if holder and holder ~= token then
    find('I6', 'its lease is held by token ', holder, ', but the last to attach was ', token)
  end
end

-- Checks that a schedule has an event and a due time (I8).
local function check_schedule(subject)
  local object, key = rare.schedules.parse(subject.name)
  if not object or object == '' then
    return find('I8', K.events_scheduled, ' has an entry that is not an object and a key')
  elseif rare.names.is_foreign(object) then
    return
  end
  local hash = P .. object .. K.events_scheduled_of
  local score = shared(K.events_scheduled, 'zset') and redis_call('ZSCORE', P .. K.events_scheduled, subject.name)
  local due, is_queued = nil, false
  if score then
    due, is_queued = rare.schedules.due_of(score)
  end
  local has_event = type_of(hash) == 'hash' and redis_call('HEXISTS', hash, key) == 1
  if due and not has_event then
    find('I8', 'is due, but ', object, K.events_scheduled_of, ' has no event for it: workers will remove it')
  elseif has_event and not due then
    find('I8', 'has an event, but no due time in ', K.events_scheduled, ': it will never be queued; schedule or cancel it')
  elseif is_queued and type_of(P .. object .. K.events) == 'none' then
    find('I8', 'is queued, but ', object, K.events, ' is empty: it will never be claimed; schedule or cancel it')
  elseif due and math.abs(tonumber(due) or 0) > 9007199254740991 then
    find('I8', 'is due at ', due, ', a time that never comes; schedule or cancel it')
  end
end

-- Checks that a cron job has a next tick unless it is paused (I9).
local function check_cron(subject)
  local tick = shared(K.events_cron_next, 'zset') and redis_call('ZSCORE', P .. K.events_cron_next, subject.name)
  local value = shared(K.events_cron, 'hash') and redis_call('HGET', P .. K.events_cron, subject.name)
  local job = value and rare.cron.parse(value)
  if value and not job then
    find('layout', K.events_cron, ' has a value that is no cron job: set or remove it')
  elseif tick and not value then
    find('I9', 'has a next tick, but ', K.events_cron, ' has no such job: workers will remove it')
  elseif tick and job.paused then
    find('I9', 'is paused, but has a next tick: workers will remove that')
  elseif job and not tick and not job.paused then
    find('I9', 'has no next tick in ', K.events_cron_next, ': it will never fire; pause it and resume it')
  end
end

local indexes = rare.indexes.with(find, expect, shared, whole)

-- Compares the lengths of indexes. They tell of a lost index without a look at each object.
local function compare_lengths()
  if shared(K.event_rules, 'none') and shared(K.objects_paused, 'zset') then
    find('I2', K.objects_paused, ' has ', redis_call('ZCARD', P .. K.objects_paused), ' objects, but there is no rule')
  end
  if indexed() and shared(K.event_workers, 'hash') then
    local names = redis_call('HLEN', workers_key)
    local known = redis_call('ZCARD', P .. K.event_workers_watched) + redis_call('ZCARD', P .. K.event_workers_departed)
    if names > known then
      find('layout', K.event_workers, ' has ', names, ' names, but sweeps look at ', known)
    end
  end
end

-- Checks the shared keys.
local function check_shared(subject)
  local has = {}
  for _, key in ipairs(SHARED_TYPES) do
    has[key[1]] = expect(P .. key[1], key[2])
  end
  if has[K.meta] then indexes.meta() end
  if has[K.event_rules] then indexes.rules() end
  if has[K.event_limits] then indexes.limits() end
  if has[K.event_marks] then indexes.marks() end
  local is_sound = function(key, kind) return shared(key, kind) or shared(key, 'none') end
  if is_sound(K.event_shares, 'hash') and is_sound(K.event_shares_summary, 'string') then indexes.shares(subject.hint) end
  if is_sound(K.event_groups, 'zset') and is_sound(K.event_groups_waiting, 'string') then indexes.groups() end
  if is_sound(K.events_emitted, 'hash') and is_sound(K.events_emitted_ends, 'zset') then
    local keys, ends = redis_call('HLEN', P .. K.events_emitted), redis_call('ZCARD', P .. K.events_emitted_ends)
    if keys ~= ends then
      find('layout', K.events_emitted, ' has ', keys, ' keys, but ', K.events_emitted_ends, ' has ', ends)
    end
  end
  if has[K.next_event_id] and not whole(redis_call('GET', P .. K.next_event_id)) then
    find('layout', P, K.next_event_id, ' is not a whole number below 2^53')
  end
  if subject.hint == 'counts' then compare_lengths() end
end

local look = {object = check_object, worker = check_worker, name = check_name, group = indexes.group, schedule = check_schedule, cron = check_cron,
  shared = check_shared}
for at, subject in ipairs(subjects) do
  position = at
  look[subject.kind](subject)
end
return {'looked', findings, names}
