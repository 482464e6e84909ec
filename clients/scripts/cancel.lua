#!lua flags=allow-oom
local P, redis_call, redis_try = ARGV[1], redis.call, redis.pcall
local K = { WORKER = 'event.worker:', events = ':events', last_event_id = ':last.event.id', event_worker = ':event.worker', events_held = ':events.held', events_held_id = ':events.held.id', event_handled = ':event.handled', event_errors = ':event.errors', event_key = ':event.key', events_scheduled_of = ':events.scheduled', worker_event_id = ':event.id', objects_with_events = 'objects.with.events', objects_held = 'objects.held', objects_paused = 'objects.paused', events_scheduled = 'events.scheduled', events_scheduled_wake = 'events.scheduled.wake', event_log = 'event.log', meta = 'seriatim.meta' }
local PRODUCER = { event_end = ':event.end', event_ends = ':event.ends' }
local rare
local ids = (function()
local MAX = 9007199254740991

local function parse(text)
  local id = #text <= 16 and string.find(text, '^%d+$') and tonumber(text)
  return id and id <= MAX and id or nil
end

local function text(number)
  if number < 100000000 then
    return string.format('%d', number)
  end
  local low = number % 100000000
  return string.format('%d%08d', (number - low) / 100000000, low)
end

local function after(id, count)
  return id + count
end

return { MAX = MAX, parse = parse, text = text, after = after }
end)()
rare = setmetatable({}, { __index = function(made, name)
local file
if name == 'time' then
file = (function()
local asked_us

local function now_us()
  if not asked_us then
    local time = redis_call('TIME')
    asked_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
  end
  return asked_us
end

local function now_ms()
  return math.floor(now_us() / 1000)
end

return { now_us = now_us, now_ms = now_ms }
end)()
elseif name == 'tag' then
file = (function()

local COUNT_MAX = 4294967295

local function stored(tag, object)
  return tag .. '\n' .. object
end

local function split(value)
  local at = string.find(value, '\n', 1, true)
  if at then
    return string.sub(value, 1, at - 1), string.sub(value, at + 1)
  end
  return value, nil
end

local function numbers(tag)
  local first, rest = string.match(tag, '^(%d+)([^\n]*)')
  local handouts, attempts, crashes = string.match(rest or '', '^ (%d+) ?(%d*) ?(%d*)$')
  return first, tonumber(handouts) or 0, tonumber(attempts) or 0, tonumber(crashes) or 0
end

local function text_of(first, handouts, attempts, crashes)
  if crashes > 0 then
    return string.format('%s %d %d %d', first, handouts, attempts, crashes)
  elseif attempts > 0 then
    return string.format('%s %d %d', first, handouts, attempts)
  elseif handouts > 0 then
    return string.format('%s %d', first, handouts)
  end
  return first
end

local function keyed(first)
  return first .. ' 0'
end

local function is_odd(value)
  return string.find(value, '^%d+ ') ~= nil
end

local function first_of(tag)
  local parts, first = {}, nil
  for part in string.gmatch(tag, '[^ ]+') do
    local number = ids.parse(part)
    if not number or first and number > COUNT_MAX then
      return nil
    end
    parts[#parts + 1], first = part, first or number
  end
  local is_tag = #parts <= 4 and first and first > 0 and table.concat(parts, ' ') == tag
  return is_tag and first or nil
end

local function held_numbers(value)
  local first, handouts, attempts, crashes, why_at = string.match(value, '^(%d+) (%d+) (%d+) (%d+) ?()')
  return first, tonumber(handouts), tonumber(attempts), tonumber(crashes), why_at
end

local function held_why(value)
  local first, _, _, _, why_at = held_numbers(value)
  return first and string.sub(value, why_at)
end

local function held_error(value)
  local _, _, _, _, why_at = held_numbers(value)
  local error_at = string.match(value, '^retry: ()', why_at) or string.match(value, '^attempts: .-: ()', why_at)
  return string.sub(value, error_at or why_at)
end

local function held_text(first, handouts, attempts, crashes, why)
  return string.format('%s %d %d %d ', first, handouts, attempts, crashes) .. why
end

local function has_failed(value)
  return string.find(value, '^%d+ %d+ [1-9]') ~= nil
end

return {
  stored = stored, split = split, numbers = numbers, text = text_of, first_of = first_of, held_numbers = held_numbers, held_why = held_why,
  held_error = held_error, held_text = held_text, has_failed = has_failed, keyed = keyed, is_odd = is_odd,
}
end)()
elseif name == 'schedules' then
file = (function()

local SCAN_BYTES, AT_ONCE = 1048576, '1'
local QUEUED, QUEUED_MIN = -1000000000000000, -9007199254740991

local function parse(member)
  return string.match(member, '^(.*)\n([^\n]*)$')
end

local function member(object, key)
  return object .. '\n' .. key
end

local function scan(hash, cursor, count)
  local keys, bytes = {}, 0
  repeat
    local found = redis_call('HSCAN', hash, cursor, 'COUNT', AT_ONCE)
    cursor = found[1]
    for i = 1, #found[2], 2 do
      keys[#keys + 1], bytes = found[2][i], bytes + #found[2][i + 1]
    end
  until cursor == '0' or #keys >= count or bytes >= SCAN_BYTES
  return keys, cursor
end

local function is_chosen(key)
  return string.byte(key) ~= 45
end

local function queued(now_us, key)
  return string.format('%.0f', QUEUED - now_us), string.format('\0queued %.0f ', now_us) .. key
end

local function referred(text)
  return string.match(text, '^%zqueued (%d+) (.*)$')
end

local function counts(score, time_us)
  return score and tonumber(score) == QUEUED - tonumber(time_us)
end

local function due_of(score)
  local number = tonumber(score) or 0
  if number <= QUEUED and number >= QUEUED_MIN then
    return string.format('%.0f', math.floor((QUEUED - number) / 1000)), true
  end
  return score, false
end

return {
  FIRST_DUE = '(-1000000000000000', parse = parse, member = member, scan = scan, is_chosen = is_chosen, queued = queued,
  referred = referred, counts = counts, due_of = due_of,
}
end)()
elseif name == 'awaited' then
file = (function()

local SECONDS_MAX, PENDING_MS = 604800, '604800000'

local function key_of(seconds, name)
  return '?' .. seconds .. ' ' .. name
end

local function parse(key)
  return string.match(key, '^%?(%d+) (.+)$')
end

local function at(object, name)
  return P .. rare.schedules.member(object, name) .. PRODUCER.event_end
end

local function asked(text, name)
  local seconds, inbox = string.match(text, '^(%d+) (%w*)$')
  local number = tonumber(seconds)
  if number and number >= 1 and number <= SECONDS_MAX and #inbox <= 32 and name ~= '' and not string.find(name, '\n', 1, true) then
    return seconds, inbox
  end
end

local function begin(object, name, seconds, inbox, digest)
  redis_call('SET', at(object, name), '?' .. seconds .. ' ' .. inbox .. ' ' .. digest, 'PX', PENDING_MS)
end

local function pending(object, name, seconds)
  local noted, digest = string.match(redis_call('GET', at(object, name)) or '', '^%?(%d+) %w* (%x+)$')
  local key = key_of(noted or seconds, name)
  if redis_call('HGET', P .. object .. K.events_scheduled_of, key) then
    return digest or ''
  end
  local taken = redis_call('GET', P .. object .. K.event_key)
  return taken and string.match(taken, '^%d+ (.*)$') == key and (digest or '') or nil
end

local function inbox_of(value)
  return type(value) == 'string' and string.match(value, '^%?%d+ (%w+) ') or nil
end

return { asked = asked, key_of = key_of, parse = parse, at = at, begin = begin, pending = pending, inbox_of = inbox_of }
end)()
elseif name == 'emits' then
file = (function()

local function is_emit(field)
  return string.sub(field, 1, 5) == 'emit:'
end

local function is_result(field)
  return string.sub(field, 1, 7) == 'result:'
end

local function size_of(value)
  return string.match(value, '^%d+ (%d+ %d+) ') or ''
end

local function results_of(kept)
  local members = {}
  for i = 1, #kept, 2 do
    if is_result(kept[i]) then
      members[#members + 1] = kept[i + 1]
    end
  end
  table.sort(members)
  return members[1] and '{' .. table.concat(members, ',') .. '}'
end

local function schedule_of(text, at)
  local name_bytes, event_bytes, key_bytes, mode, sign, ms, from = string.match(text, '^s(%d+) (%d+) (%d+) ([rtfc])([@+])(%d+) ()', at)
  if not from then
    return nil
  end
  local event_at = from + name_bytes
  local key_at = event_at + event_bytes
  local behind = key_at + key_bytes
  local schedule = { object = string.sub(text, from, event_at - 1), event = string.sub(text, event_at, key_at - 1), mode = mode }
  schedule.key, schedule.sign, schedule.ms = string.sub(text, key_at, behind - 1), sign, tonumber(ms)
  return schedule, behind
end

local function emits_of(kept)
  local id, texts, emits, n = 0, {}, {}, 0
  for i = 1, #kept, 2 do
    if kept[i] == 'id' then
      id = ids.parse(kept[i + 1]) or 0
    elseif is_emit(kept[i]) then
      local place, at = string.match(kept[i + 1], '^(%d+) %d+ %d+ ()')
      texts[#texts + 1] = { place = tonumber(place) or 0, field = kept[i], text = kept[i + 1], at = at }
    end
  end
  table.sort(texts, function(a, b)
    return a.place < b.place or a.place == b.place and a.field < b.field
  end)
  for _, of in ipairs(texts) do
    local text, at = of.text, of.at
    repeat
      local name_bytes, event_bytes, from = string.match(text, '^(%d+) (%d+) ()', at)
      local event_at, schedule = from and from + name_bytes, nil
      if event_at then
        at = event_at + event_bytes
      else
        schedule, at = schedule_of(text, at)
      end
      if id == 0 or not of.at or not at or at > #text + 1 then
        return id, nil
      elseif schedule then
        emits.later = emits.later or {}
        emits.later[#emits.later + 1] = schedule
      else
        emits[n + 1], emits[n + 2] = string.sub(text, from, event_at - 1), string.sub(text, event_at, at - 1)
        n = n + 2
      end
    until at > #text
  end
  return id, emits
end

local function wrong_key(emits)
  local seen = {}
  local function wrong(key, kind)
    local found = seen[key] or redis_call('TYPE', P .. key).ok
    seen[key] = found
    return found ~= kind and found ~= 'none' and found
  end
  for _, schedule in ipairs(emits.later or {}) do
    local hash = schedule.object .. K.events_scheduled_of
    for _, key in ipairs({ { hash, 'hash' }, { K.events_scheduled, 'zset' }, { K.events_scheduled_wake, 'zset' } }) do
      local found = wrong(key[1], key[2])
      if found then
        return key[1], found
      end
    end
  end
  for i = 1, #emits, 2 do
    local queue = emits[i] .. K.events
    local found = wrong(queue, 'list')
    if found then
      return queue, found
    end
  end
end

local function commands_of(emits)
  local commands, seen = { emits[1] and { 'LPUSH', P .. K.objects_with_events, 'v' } or nil }, {}
  for i = 1, #emits, 2 do
    local object = emits[i]
    commands[#commands + 1] = not seen[object] and { 'LPUSH', P .. object .. K.events, 'v' } or nil
    seen[object] = true
  end
  for _, later in ipairs(emits.later or {}) do
    local hash, index = P .. later.object .. K.events_scheduled_of, P .. K.events_scheduled
    if later.mode == 'c' then
      commands[#commands + 1], commands[#commands + 2] = { 'HDEL', hash, 'f' }, { 'ZREM', index, 'm' }
    else
      commands[#commands + 1], commands[#commands + 2] = { 'HSET', hash, 'f', 'v' }, { 'ZSCORE', index, 'm' }
      commands[#commands + 1], commands[#commands + 2] = { 'ZADD', index, '0', 'm' }, { 'ZADD', P .. K.events_scheduled_wake, '0', 'm' }
    end
  end
  return commands
end

local function denied_of(commands)
  for _, command in ipairs(commands) do
    if not redis.acl_check_cmd(unpack(command)) then
      return command[1]
    end
  end
end

local WAKE_MS = 60000

local function schedule_all(later)
  local now_ms, wakes = rare.time.now_ms(), false
  for _, schedule in ipairs(later) do
    local hash, member = P .. schedule.object .. K.events_scheduled_of, rare.schedules.member(schedule.object, schedule.key)
    local mode, index = schedule.mode, P .. K.events_scheduled
    if mode == 'c' then
      redis_call('HDEL', hash, schedule.key)
      redis_call('ZREM', index, member)
    else
      local due_ms = math.min(schedule.sign == '+' and now_ms + schedule.ms or schedule.ms, ids.MAX)
      local is_there = mode ~= 'r' and redis_call('ZSCORE', index, member)
      if not is_there or mode == 't' then
        redis_call('HSET', hash, schedule.key, schedule.event)
      end
      if not is_there then
        redis_call('ZADD', index, string.format('%.0f', due_ms), member)
        wakes = wakes or due_ms < now_ms + WAKE_MS
      end
    end
  end
  if wakes then
    redis_call('ZADD', P .. K.events_scheduled_wake, '0', 'wake')
  end
end

local MARKERS_PER_PUSH = 1000

local function push_emits(emits)
  if emits.later then
    schedule_all(emits.later)
  end
  local marked, markers = {}, {}
  for i = 1, #emits, 2 do
    local object = emits[i]
    redis_call('LPUSH', P .. object .. K.events, emits[i + 1])
    if not marked[object] then
      marked[object], markers[#markers + 1] = true, object
    end
  end
  for i = 1, #markers, MARKERS_PER_PUSH do
    redis_call('LPUSH', P .. K.objects_with_events, unpack(markers, i, math.min(i + MARKERS_PER_PUSH - 1, #markers)))
  end
  return #markers
end

return {
  is_emit = is_emit, is_result = is_result, size_of = size_of, results_of = results_of, parse = emits_of,
  wrong_key = wrong_key, commands = commands_of, denied = denied_of, push = push_emits,
}
end)()
elseif name == 'ends' then
file = (function()

local SECONDS_MAX = 604800
local INBOX_MAX, INBOX_MS = '1023', '60000'

local function text_of(status, id, why, attempts, results)
  local text = '{"status":"' .. status .. '","id":' .. id .. ',"attempts":' .. attempts
  if why ~= '' then
    text = text .. ',"error":' .. cjson.encode(why)
  end
  if results then
    text = text .. ',"results":' .. results
  end
  return text .. '}'
end

local function write(object, key, status, id, why, attempts, results)
  local seconds, name = rare.awaited.parse(key)
  if not name then
    return
  end
  local at = rare.awaited.at(object, name)
  local inbox = rare.awaited.inbox_of(redis_try('GET', at))
  local ms = ids.text(1000 * math.min(tonumber(seconds), SECONDS_MAX))
  redis_try('SET', at, text_of(status, id, why, attempts, results), 'PX', ms)
  local ends = inbox and P .. '\n' .. inbox .. PRODUCER.event_ends
  if ends and not rare.emits.denied({ { 'LTRIM', ends, '0', '0' }, { 'PEXPIRE', ends, '1' } }) then
    redis_try('LPUSH', ends, at)
    redis_try('LTRIM', ends, '0', INBOX_MAX)
    redis_try('PEXPIRE', ends, INBOX_MS)
  end
end

local function of_event(object, status, id, why, attempts, results)
  local value = redis_try('GET', P .. object .. K.event_key)
  local of, key = string.match(type(value) == 'string' and value or '', '^(%d+) (.*)$')
  if of == id then
    write(object, key, status, id, why, attempts, results)
  end
end

return { write = write, of_event = of_event }
end)()
elseif name == 'ending' then
file = (function()

local function look(object, key, expected)
  local found = redis_call('MGET', P .. object .. K.event_key, P .. object .. K.event_worker, P .. object .. K.last_event_id, P .. object .. K.events_held_id)
  local id, taken = string.match(found[1] or '', '^(%d+) (.*)$')
  local last = found[3] and ids.parse(found[3]) or 0
  if taken ~= key or expected and id ~= expected or not ids.parse(id) or ids.parse(id) <= last then
    return nil, { 'absent' }
  end
  local first, _, attempts = rare.tag.held_numbers(found[4] or '')
  local is_lost = not found[2] and first == id
  if found[2] ~= 'held' and not is_lost then
    local tag = found[2] and redis_call('MGET', P .. K.WORKER .. found[2] .. K.worker_event_id)[1]
    return nil, tag and (rare.tag.numbers(tag)) == id and { 'running', id } or { 'absent' }
  end
  if first ~= id then
    return nil, { 'absent' }
  end

  local held, markers = P .. K.objects_held, P .. K.objects_with_events
  local batch, handled = P .. object .. K.events_held, P .. object .. K.event_handled
  local keys = { batch, P .. object .. K.events_held_id, handled, P .. object .. K.event_errors, P .. object .. K.event_key }
  local types = {
    held, 'zset', P .. K.objects_paused, 'zset', markers, 'list', batch, 'list', handled, 'hash', P .. K.meta, 'hash', P .. K.event_log, 'stream',
  }
  for i = 1, #types, 2 do
    local kind = redis_call('TYPE', types[i]).ok
    if kind ~= types[i + 1] and kind ~= 'none' then
      return nil, { 'wrong_type', types[i], kind }
    end
  end
  local logs = redis_call('HGET', P .. K.meta, 'event.log')
  local rights = {
    { 'DEL', unpack(keys) }, { 'ZADD', held, '0', object }, { 'ZSCORE', P .. K.objects_paused, object },
    { 'RPUSH', markers, '' }, logs and { 'XADD', P .. K.event_log, '*', 'f', 'v' } or nil,
  }
  if is_lost then
    rights[#rights + 1] = { 'SET', P .. object .. K.event_worker, 'held' }
  end
  local kept = redis_call('HGETALL', handled)
  local handled_id, emits = rare.emits.parse(kept)
  if not emits then
    return nil, { 'wrong_type', handled, 'hash that cannot be read' }
  end
  local wrong, kind = rare.emits.wrong_key(emits)
  if wrong then
    return nil, { 'wrong_type', P .. wrong, kind }
  end

  local denied = rare.emits.denied(rights) or rare.emits.denied(rare.emits.commands(emits))
  if denied then
    return nil, { 'denied', denied }
  end

  local event, results = redis_call('LINDEX', batch, '-1') or '', handled_id == ids.parse(id) and rare.emits.results_of(kept)
  local why = 'cancelled: ' .. rare.tag.held_why(found[4])
  local row = { 'id', id, 'prev', found[3] or '0', 'object', object, 'event', event, 'error', why, 'attempts', ids.text(attempts) }
  if results then
    row[#row + 1], row[#row + 2] = 'results', results
  end
  local over = { id = id, object = object, key = key, keys = keys, emits = emits, row = logs and row, is_lost = is_lost }
  over.why, over.attempts, over.results = why, ids.text(attempts), results
  return over
end

local function finish(event)
  if event.row then
    redis_call('XADD', P .. K.event_log, '*', 'status', 'cancelled', unpack(event.row))
  end
  rare.ends.write(event.object, event.key, 'cancelled', event.id, event.why, event.attempts, event.results)
  redis_call('DEL', unpack(event.keys))
  if event.is_lost then
    redis_call('SET', P .. event.object .. K.event_worker, 'held')
  end
  rare.emits.push(event.emits)
  if not redis_call('ZSCORE', P .. K.objects_paused, event.object) then
    redis_call('ZADD', P .. K.objects_held, '0', event.object)
    redis_call('RPUSH', P .. K.objects_with_events, '')
  end
end

return { look = look, finish = finish }
end)()
end
rawset(made, name, file)
return file
end })
local object, key, expected = ARGV[2], ARGV[3], ARGV[4]

local event, reply = rare.ending.look(object, key, expected)
if not event then
  return reply
end
rare.ending.finish(event)
return { 'cancelled', event.id }
