#!lua flags=allow-oom
local WORKER = 'event.worker:'
local events = ':events'
local last_event_id = ':last.event.id'
local event_worker = ':event.worker'
local data = ':data'
local events_held = ':events.held'
local events_held_id = ':events.held.id'
local event_handled = ':event.handled'
local event_errors = ':event.errors'
local events_scheduled_of = ':events.scheduled'
local worker_object = ':object'
local worker_event = ':event'
local worker_event_id = ':event.id'
local worker_lease = ':lease'
local objects_with_events = 'objects.with.events'
local objects_held = 'objects.held'
local objects_paused = 'objects.paused'
local next_event_id = 'next.event.id'
local event_workers = 'event.workers'
local events_dead = 'events.dead'
local events_scheduled = 'events.scheduled'
local event_rules = 'event.rules'
local event_log = 'event.log'
local event_projections = 'event.projections'
local operator_actions = 'operator.actions'
local meta = 'seriatim.meta'
-- prefix: every script's first argument is what all keys begin with.
local P = ARGV[1]
-- ids: whole numbers from 0 to 2^53 - 1, as text.
local ID_MAX = 9007199254740991

-- The number, or nil where the text is none. `tonumber` alone takes `nan`, `1e5`, `0x10` and ` 7` for numbers.
local function id_of(text)
  local id = #text <= 16 and string.find(text, '^%d+$') and tonumber(text)
  return id and id <= ID_MAX and id or nil
end
-- fence: every write of a worker process begins here.

local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Answers nil where the lease of `name` holds `token`; else the reply to give before anything is touched:
-- `lapsed` where the lease is gone and nobody took the name since, `fenced` with the present lease otherwise.
local function fence(name, token)
  local lease = redis.call('GET', P .. WORKER .. name .. worker_lease)
  if lease and string.sub(lease, 1, #token) == token then
    return nil
  end
  if not lease then
    local value = redis.call('HGET', P .. event_workers, name)
    if value and string.match(value, '^%d+ (%S+)') == token then
      return { 'lapsed' }
    end
  end
  return { 'fenced', lease or '' }
end
-- tag: the tag of a batch in flight, and the value of events.held.id, which tells the same numbers of a held one.

-- The four numbers of a tag, `FIRST[ HANDOUTS[ ATTEMPTS[ CRASHES]]]`; the first one stays text, as ids do.
local function numbers(tag)
  local first, rest = string.match(tag, '^(%d+)(.*)$')
  local handouts, attempts, crashes = string.match(rest or '', '^ (%d+) ?(%d*) ?(%d*)$')
  return first, tonumber(handouts) or 0, tonumber(attempts) or 0, tonumber(crashes) or 0
end

-- The tag of these numbers, without trailing zeros.
local function tag_of(first, handouts, attempts, crashes)
  if crashes > 0 then
    return string.format('%s %d %d %d', first, handouts, attempts, crashes)
  elseif attempts > 0 then
    return string.format('%s %d %d', first, handouts, attempts)
  elseif handouts > 0 then
    return string.format('%s %d', first, handouts)
  end
  return first
end

local function held_id_of(first, handouts, attempts, crashes, why)
  -- Not by %s, which cuts a name in it at a NUL.
  return string.format('%s %d %d %d ', first, handouts, attempts, crashes) .. why
end
return (function()
-- advance: commit and claim, for any number of slots in one call.
--
-- Purpose   Takes in what became of the batches in flight, gives the same slots more of their objects, and gives free slots other objects.
--           What a rule is over is paused, and rules that are lifted or past their end are woken, so many objects in each call.
--           Repeating a call changes nothing: a result that names another batch than the one in flight is ignored, and a slot that still has
--           a batch gets that batch.
--           The steps are in lua/advance/: read call.lua first. What only some calls need is a part, which `NAME()` makes and answers: `hold()`, `log()`, …
-- Keys      KEYS[1] event.worker:NAME:lease (string, read); event.workers (hash, read), next.event.id (string), objects.with.events (list),
--           objects.held and objects.paused (zsets), event.rules (hash), events.dead and event.log (streams, written, the log trimmed),
--           event.worker:W:* of the slots named, and of the objects they have or get
--           OBJ:events, OBJ:last.event.id, OBJ:event.worker, OBJ:events.held, OBJ:events.held.id (read and write), OBJ:event.handled (hash, read and
--           deleted), OBJ:event.errors (list, written); OBJ:events of the objects for which handlers have emitted (lists, written)
-- Arguments prefix; name; token (UUID); events per batch (1 to 1000); bytes per batch; bytes per reply; slots that may claim (0 to 1024);
--           markers looked at (1 to 4096); where to claim first: held | markers; ms after which the last id of a released object is forgotten
--           (0: never); then, where the event log is on, `log`, rows kept (about), ms they are kept (0: however old); then per slot, its number and
--           a result, which with the log on is followed by how long ago its batch was taken, ms:
--             free                                                          no batch, as far as the caller knows
--             look                                                          busy, but a pop for it may have moved a name: return it
--             handled                                                       the result of this slot, which follows, may end the event of which
--                                                                           OBJ:event.handled tells: if so, what handlers have emitted is
--                                                                           pushed, and the hash deleted
--             done   OBJECT TAG LAST                                        all delivered, LAST is the id of the last one: go on
--             yield  OBJECT TAG LAST                                        all delivered: let other objects have a turn
--             part   OBJECT TAG LAST COUNT NEXT                             the first COUNT are delivered; the rest, now NEXT, stays in hand
--             hold   OBJECT TAG LAST COUNT DELAY_MS|inf HELD_ID             the first COUNT are delivered; hold the rest. Where its attempts are
--                                                                           more than they were, its error is kept
--             reject OBJECT TAG LAST COUNT NEXT ID ERROR ATTEMPTS           the first COUNT are delivered; the one after them, ID, is a dead letter
--             complete, with the same arguments                             the same, but that one is completed with errors: the log keeps it
--           TAG is the tag of the batch in flight as the reply gave it, NEXT the tag of what remains ('' = nothing), LAST '' where COUNT is 0.
-- Replies   {'ok', ms to the next due time, or to the end of a rule | -1, more 0|1, where to claim first next time, {slot…}, {quarantined: object, why, …}}
--             slot = {number, object, tag, prev, event…}, oldest event first; a slot that is not mentioned is free
--           | {'lapsed'} | {'fenced', lease} | {'counter', value}: next.event.id is not a number or at its end
-- Keeps     I1 to I6
-- Cost      per call about 20 commands, per claim 2, per batch of more than one event 2 or more; bounded by slots, events, bytes and markers;
--           with rules one more for each object looked at and what waking 256 objects takes; with the log on, 1 for each event that is finalized,
--           2 for its batch and 3 for the call; 1 or 2 for each event that fails, and 1 where one ends that had failed; 1 for each slot that is said to
--           be handled, and 1 for each event that handlers have emitted for it, 2 for each object of these
local args = ARGV
local name, token = args[2], args[3]
local batch_max, batch_bytes, reply_bytes = tonumber(args[4]), tonumber(args[5]), tonumber(args[6])
local claims, markers_max, from, forget_ms = tonumber(args[7]), tonumber(args[8]), args[9], tonumber(args[10])
local SLOT_ARGS, LOG_ARGS = 11, 3
local log_on = args[SLOT_ARGS] == 'log'

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
-- Those at the tail that are used, and not trimmed yet.
local markers_used = 0
-- All that rules cost where there is none.
local rules_next = call('HGET', P .. event_rules, 'next')
if rules_next then
  call('ZCARD', P .. objects_paused)
end
local entries, quarantined, progress = {}, {}, false

-- The number as text: an id, or how many. What Redis makes of a number itself takes longer; %d alone may be short of 2^53.
local function text_of(number)
  return format(number < 2147483648 and '%d' or '%.0f', number)
end

-- Writes that wait until all slots have come this far, so that one command does them for all of them. They cannot fail: neither command
-- minds what type a key had. Who reads such a key writes them down first. What is set has no time to live: that comes after it.
local to_set, to_set_n, to_delete, to_delete_n, to_expire = {}, 0, {}, 0, {}

local function set_later(key, value)
  to_set[to_set_n + 1], to_set[to_set_n + 2] = key, value
  to_set_n = to_set_n + 2
end

local function delete_later(key)
  to_delete_n = to_delete_n + 1
  to_delete[to_delete_n] = key
end

local function write_down()
  if to_delete_n > 0 then
    call('DEL', unpack(to_delete, 1, to_delete_n))
    to_delete_n = 0
  end
  if to_set_n > 0 then
    call('MSET', unpack(to_set, 1, to_set_n))
    to_set_n = 0
  end
  if #to_expire > 0 then
    for _, key in ipairs(to_expire) do
      call('PEXPIRE', key, forget_ms)
    end
    to_expire = {}
  end
end

-- Nobody has the object any more, and it has no events: only its last id remains.
local function forget_later(object)
  if forget_ms > 0 then
    to_expire[#to_expire + 1] = P .. object .. last_event_id
  end
end

-- Whether the reply is an error for a key's type. Any other error is no matter of one key, and ends the call.
local function is_wrong_type(reply)
  if type(reply) ~= 'table' or not reply.err then
    return false
  end
  return string.find(reply.err, '^WRONGTYPE') ~= nil or error(reply)
end

-- Whether the event at the head of the batch with this tag has failed before.
local function has_failed(tag)
  return string.find(tag, '^%d+ %d+ [1-9]') ~= nil
end

-- The slot has nothing more of its object. The name stays in its list until the slot's next object takes its place there, or the call ends:
-- as the last of the list, for all that came later are before it.
local function leave(slot, object)
  delete_later(P .. object .. event_worker)
  forget_later(object)
  slot.left = object
end

-- Objects this call has held until an operator releases them: they are not due any more, though it may have read before that they are.
local put_aside = {}
return (function()
-- batch: out of the queue, into the slot's hands, into the reply. An entry of the reply is {number, object, tag, prev, event…}.
local EVENTS_FROM = 5

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
local hold_made
local function hold()
hold_made = hold_made or (function()
-- hold: what every script that lets go of an object shares. Holding is the one mechanism for retry, takeover, yield and shutdown.

-- Takes `object` away from worker `w` (its keys begin with `at`) and holds it until `due` (ms, or 'inf').
-- `held_id` is the value of events.held.id; nil where the batch is empty and the reason is a yield.
-- Writes the batch by RENAME: whatever its size, one step, and no type can make it fail.
local function hold(at, object, due, held_id)
  redis.call('ZADD', P .. objects_held, due, object)
  if held_id then
    redis.call('SET', P .. object .. events_held_id, held_id)
  end
  redis.call('DEL', at .. worker_event_id)
  redis.call('SET', P .. object .. event_worker, 'held')
  redis.call('LREM', at .. worker_object, 1, object)
end

local function hold_batch(at, object, due, held_id)
  redis.call('RENAME', at .. worker_event, P .. object .. events_held)
  hold(at, object, due, held_id)
end

-- A name a worker has taken but does not own goes back to the markers, at the end that is taken next: it has waited already.
-- Removes by value: a list may hold two names after a lost reply.
local function stray(at, object)
  redis.call('LREM', at .. worker_object, 1, object)
  if object ~= '' then
    redis.call('RPUSH', P .. objects_with_events, object)
  end
end
-- hold: what a slot has is put back or held.

-- Not by string.format, which cuts a name at a NUL.
local function quarantined_by(wrong)
  return 'quarantine: ' .. wrong .. ' is a ' .. call('TYPE', P .. wrong).ok
end

-- What the keys of the slot begin with.
local function at_of(slot)
  return P .. WORKER .. slot.w
end

-- Holds the batch of a slot as it is, until an operator releases it, because what its result asks for cannot be done.
local function hold_back(slot, object, why)
  local first, handouts, attempts, crashes = numbers(args[slot.arg + 1])
  hold_batch(at_of(slot), object, 'inf', held_id_of(first, handouts, attempts, crashes, why))
  quarantined[#quarantined + 1] = object
  quarantined[#quarantined + 1] = why
end

local function hold_now(slot, object)
  hold(at_of(slot), object, now_ms, nil)
end

-- Puts back what was taken, as if nothing had been.
local function put_back(slot, object, entry)
  for i = #entry, EVENTS_FROM, -1 do
    call('RPUSH', P .. object .. events, entry[i])
    reply_bytes = reply_bytes + #entry[i]
  end
  call('DEL', slot.batch)
end

-- Holds an object the slot has, until an operator releases it, because its key `wrong` has a wrong type: that must stop nothing else.
local function quarantine(slot, object, wrong)
  put_aside[object] = true
  local why = quarantined_by(wrong)
  hold(at_of(slot), object, 'inf', '0 0 0 0 ' .. why)
  try('ZREM', P .. objects_paused, object)
  quarantined[#quarantined + 1] = object
  quarantined[#quarantined + 1] = why
end

-- Holds a held object whose owner's key has a wrong type, until an operator releases it: its batch and the numbers of that stay what they are.
local function quarantine_held(slot, object)
  put_aside[object] = true
  quarantined[#quarantined + 1] = object
  quarantined[#quarantined + 1] = quarantined_by(object .. event_worker)
  call('ZADD', P .. objects_held, 'inf', object)
  try('ZREM', P .. objects_paused, object)
  call('SET', P .. object .. event_worker, 'held')
  call('LREM', slot.list, '1', object)
end

-- Whether the object is among the held or the paused ones. Where that cannot be told of the paused ones, because their key has a wrong type, it is.
local function is_held(object)
  return call('ZSCORE', P .. objects_held, object) or try('ZSCORE', P .. objects_paused, object)
end

return {
  now = hold_now, batch = hold_batch, back = hold_back, put_back = put_back, stray = stray, at_of = at_of,
  quarantine = quarantine, quarantine_held = quarantine_held, quarantined_by = quarantined_by, is_held = is_held,
}
end)()
return hold_made
end
local again_made
local function again()
again_made = again_made or (function()
-- again: what a slot has is given to it again.

-- MGET, because it answers nil for a key of a wrong type where GET would fail. What is no id must not reach the caller: with the
-- batch in hand there is nothing to hold back any more, and 0 is an id before it.
local function last_of(object)
  local last = call('MGET', P .. object .. last_event_id)[1]
  return last and id_of(last) and last or '0'
end

-- Gives the slot the batch it has: what remains of one, or all of it after a lost reply, a restart, a hold.
local function give_again(slot, object, tag)
  slot.has = true
  if reply_bytes <= 0 then
    return
  end
  local batch = call('LRANGE', slot.batch, 0, -1)
  local entry = { slot.number, object, tag, last_of(object) }
  for i = #batch, 1, -1 do
    reply_bytes = reply_bytes - #batch[i]
    entry[#entry + 1] = batch[i]
  end
  entries[#entries + 1] = entry
  progress = true
end

-- The batch of a slot whose result, if any, speaks of another one.
local function give_unknown(slot, tag)
  slot.has = true
  for _, object in ipairs(call('LRANGE', slot.list, 0, -1)) do
    if call('MGET', P .. object .. event_worker)[1] == slot.w then
      return give_again(slot, object, tag)
    end
  end
end

return { last_of = last_of, give = give_again, give_unknown = give_unknown }
end)()
return again_made
end
local log_made
local function log()
log_made = log_made or (function()
-- log: with the event log on, what is finalized is written there, in the step that finalizes it.
-- Beyond what came in this call, so many rows are trimmed at most.
local LOG_TRIM_MAX = 10000

-- How many rows are kept, about, and for how long (ms; 0: however old).
local log_keep, log_keep_ms = args[SLOT_ARGS + 1], tonumber(args[SLOT_ARGS + 2])
local log_rows, log_wrong = 0, nil

-- Answers why the log cannot be written, or false. Asked before anything is written: an event must not leave its batch without its row, nor have two.
local function log_refused()
  if log_wrong == nil then
    local found = call('TYPE', P .. event_log).ok
    log_wrong = found ~= 'stream' and found ~= 'none' and hold().quarantined_by(event_log)
  end
  return log_wrong
end

local function log_row(slot, status, object, id, prev, event, why, attempts)
  call('XADD', P .. event_log, '*', 'status', status, 'id', id, 'prev', prev, 'object', object, 'event', event, 'error', why,
    'attempts', attempts, 'taken', slot.taken)
  log_rows = log_rows + 1
end

-- Writes down the delivered events of the batch, all of it or the first `count`. One that is buried behind them has its row where that is done.
local function log_delivered(slot, object, count)
  local id, _, attempts = numbers(args[slot.arg + 1])
  local batch, prev = call('LRANGE', slot.batch, count and text_of(-count) or '0', '-1'), again().last_of(object)
  for i = #batch, 1, -1 do
    log_row(slot, 'completed', object, id, prev, batch[i], '', text_of(attempts))
    id, prev, attempts = text_of(tonumber(id) + 1), id, 0
  end
end

-- Logs what the result of a slot finalizes. Where the log cannot be written the batch is held, until an operator releases it: answers whether it is not.
local function log_result(slot, object)
  local all = slot.result == 'done' or slot.result == 'yield'
  local buries = slot.result == 'reject' or slot.result == 'complete'
  local count = not all and tonumber(args[slot.arg + 3])
  if not all and not buries and count == 0 then
    return true
  end
  local why = log_refused()
  if why then
    hold().back(slot, object, why)
    return false
  elseif count ~= 0 then
    log_delivered(slot, object, count)
  end
  return true
end

-- Whole nodes of the stream go, and so many at most: a little more is kept than was asked for.
local function trim_log()
  if log_rows > 0 then
    local limit = text_of(log_rows + LOG_TRIM_MAX)
    call('XTRIM', P .. event_log, 'MAXLEN', '~', log_keep, 'LIMIT', limit)
    if log_keep_ms > 0 then
      call('XTRIM', P .. event_log, 'MINID', '~', text_of(now_ms - log_keep_ms), 'LIMIT', limit)
    end
  end
end

return { row = log_row, result = log_result, trim = trim_log }
end)()
return log_made
end
local rules_made
local function rules()
rules_made = rules_made or (function()
-- rules: pauses and blocks. A field of event.rules is `KIND SELECTOR`; its value is numbers, then text of the lengths they tell:
-- `SET_MS END_MS LIFTED WHO_BYTES CURSOR_BYTES WHO CURSOR WHY`, without blanks between the texts. END_MS is 0 where the rule has no end; LIFTED is 1 once
-- it is lifted, and then the objects up to CURSOR, which may be any bytes, have been woken. The field `next` tells when a rule is to be woken next.

-- The longest prefix that a rule can name.
local PREFIX_MAX = 512

local function rule_of(value)
  local set, ends, lifted, who_len, cursor_len, text = string.match(value, '^(%d+) (%d+) ([01]) (%d+) (%d+) (.*)$')
  if not text then
    return nil
  end
  local cursor_at, why_at = 1 + who_len, 1 + who_len + cursor_len
  return {
    set = set, ends = tonumber(ends), lifted = lifted == '1', who = string.sub(text, 1, cursor_at - 1),
    cursor = string.sub(text, cursor_at, why_at - 1), why = string.sub(text, why_at),
  }
end

-- Not by %s, which cuts a name at a NUL.
local function rule_text(rule)
  local numbers = string.format('%s %.0f %d %d %d ', rule.set, rule.ends, rule.lifted and 1 or 0, #rule.who, #rule.cursor)
  return numbers .. rule.who .. rule.cursor .. rule.why
end

-- Whether it holds anything; what is lifted or past its end does not.
local function is_in_force(rule, now_ms)
  return not rule.lifted and (rule.ends == 0 or rule.ends > now_ms)
end

-- The fields of all rules that there could be for the object: for everything, for each prefix at a colon, for itself; blocks first.
local function rule_fields(object)
  local selectors, colon = { '*' }, string.find(object, ':', 1, true)
  while colon and colon <= PREFIX_MAX do
    selectors[#selectors + 1] = string.sub(object, 1, colon) .. '*'
    colon = string.find(object, ':', colon + 1, true)
  end
  selectors[#selectors + 1] = object
  local fields = {}
  for _, kind in ipairs({ 'block ', 'pause ' }) do
    for _, selector in ipairs(selectors) do
      fields[#fields + 1] = kind .. selector
    end
  end
  return fields
end

-- Whether a rule in force is over the object.
local function is_ruled(object, now_ms)
  for _, value in ipairs(redis.call('HMGET', P .. event_rules, unpack(rule_fields(object)))) do
    local rule = value and rule_of(value)
    if rule and is_in_force(rule, now_ms) then
      return true
    end
  end
  return false
end

-- When a rule is to be woken next, of all fields and values: 0 where one is lifted, else the first end, or `never`; nothing where there is no rule.
local function next_of(all)
  local soonest
  for i = 1, #all, 2 do
    if all[i] ~= 'next' then
      local rule = rule_of(all[i + 1])
      local at = rule and (rule.lifted and 0 or rule.ends > 0 and rule.ends) or math.huge
      soonest = math.min(soonest or at, at)
    end
  end
  return soonest and (soonest < math.huge and string.format('%.0f', soonest) or 'never')
end

local function write_next()
  local at = next_of(redis.call('HGETALL', P .. event_rules))
  if at then
    redis.call('HSET', P .. event_rules, 'next', at)
  else
    redis.call('HDEL', P .. event_rules, 'next')
  end
  return at
end
-- rules: objects under a rule are held in objects.paused, and those of a rule that is over are woken, some in each call.
local WAKE_MAX = 256
-- More than one call should pause: then it claims nothing further, and the next one goes on.
local pauses_left = 1024

local function pause(slot, object, named)
  call('ZADD', P .. objects_paused, '0', object)
  call('SET', P .. object .. event_worker, 'held')
  if named then
    call('LREM', slot.list, '1', object)
  end
  progress = true
end

local function count_pause()
  pauses_left = pauses_left - 1
  if pauses_left <= 0 then
    claims = 0
  end
end

-- Pauses an object that nobody runs, or this slot, where it has events and a rule is over it. Answers whether it has. `named`: the slot's list has it.
-- One that is held already, though its owner's key does not tell so, is left to who looks at that.
local function pause_ruled(slot, object, last, named)
  if not is_ruled(object, now_ms) or call('EXISTS', P .. object .. events) == 0 or call('ZSCORE', P .. objects_held, object) then
    return false
  end
  pause(slot, object, named)
  if last and forget_ms > 0 then
    -- Set anew it has no time to live: what is paused is not idle, however long.
    call('SET', P .. object .. last_event_id, last)
  end
  count_pause()
  return true
end

-- Pauses a due held object that a rule is over, with the batch it has. Answers whether it has.
local function pause_held(object)
  if not is_ruled(object, now_ms) then
    return false
  end
  call('ZREM', P .. objects_held, object)
  call('ZADD', P .. objects_paused, '0', object)
  count_pause()
  return true
end

-- The names that a selector means, as a lexical range.
local function range_of(selector)
  local prefix = string.match(selector, '^(.*):%*$')
  if selector == '*' then
    return '-', '+'
  elseif prefix then
    return '[' .. prefix .. ':', '(' .. prefix .. ';'
  end
  return '[' .. selector, '[' .. selector
end

-- Makes due what no other rule is over.
local function wake_those(objects, some_in_force)
  local woken, due = {}, {}
  for _, object in ipairs(objects) do
    if not (some_in_force and is_ruled(object, now_ms)) then
      woken[#woken + 1] = object
      due[#due + 1], due[#due + 2] = now_ms, object
    end
  end
  if #woken > 0 then
    call('ZADD', P .. objects_held, unpack(due))
    call('ZREM', P .. objects_paused, unpack(woken))
  end
end

-- Goes on with the waking of rules that are lifted or past their end, where another call has left off; a rule of which nothing is left to wake goes.
-- The hash is not asked in any order, and needs none: what is over an object does not depend on it.
local function wake()
  local all, left, some_in_force = call('HGETALL', P .. event_rules), WAKE_MAX, false
  local over = {}
  for i = 1, #all, 2 do
    local rule = all[i] ~= 'next' and rule_of(all[i + 1])
    if rule and is_in_force(rule, now_ms) then
      some_in_force = true
    elseif rule then
      rule.field = all[i]
      over[#over + 1] = rule
    end
  end
  for _, rule in ipairs(over) do
    if left <= 0 then
      break
    end
    local from, to = range_of(string.sub(rule.field, #'pause ' + 1))
    if rule.cursor ~= '' then
      from = '(' .. rule.cursor
    end
    local objects = call('ZRANGE', P .. objects_paused, from, to, 'BYLEX', 'LIMIT', 0, left)
    wake_those(objects, some_in_force)
    if #objects < left then
      call('HDEL', P .. event_rules, rule.field)
    else
      rule.lifted, rule.cursor = true, objects[#objects]
      call('HSET', P .. event_rules, rule.field, rule_text(rule))
    end
    left = left - 1 - #objects
  end
  rules_next, progress = write_next(), true
end

return { pause = pause_ruled, pause_held = pause_held, wake = wake }
end)()
return rules_made
end
local emits_made
local function emits()
emits_made = emits_made or (function()
-- emits: what the handlers of an event have emitted is kept beside what they have finished, and pushed in the step that ends the event.
-- A field `emit:ID` of OBJ:event.handled is all that one handler has emitted: `PLACE EVENTS BYTES `, then for each event `NAME_BYTES EVENT_BYTES `,
-- the object's name and the event. PLACE is the handler's place among those that are registered.

local function is_emit(field)
  return string.sub(field, 1, 5) == 'emit:'
end

-- Takes the fields and values of the hash apart. Answers the event's id, 0 where there is none, and {object, event, object, event, …}: handlers in the order
-- of their places, the events of each as it emitted them. Without these it is a hash that cannot be read.
local function emits_of(kept)
  local id, texts, emits, n = 0, {}, {}, 0
  for i = 1, #kept, 2 do
    if kept[i] == 'id' then
      id = id_of(kept[i + 1]) or 0
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
      local event_at = from and from + name_bytes
      at = event_at and event_at + event_bytes
      if id == 0 or not of.at or not at or at > #text + 1 then
        return id, nil
      end
      emits[n + 1], emits[n + 2] = string.sub(text, from, event_at - 1), string.sub(text, event_at, at - 1)
      n = n + 2
    until at > #text
  end
  return id, emits
end

-- The first of their queues that is none, without the prefix, and its type. Asked before anything is written.
local function wrong_queue(emits)
  local seen = {}
  for i = 1, #emits, 2 do
    local object = emits[i]
    local found = seen[object] or redis.call('TYPE', P .. object .. events).ok
    if found ~= 'list' and found ~= 'none' then
      return object .. events, found
    end
    seen[object] = found
  end
end

-- Pushes them as a frontend does, with one marker for each object. Answers how many markers.
local function push_emits(emits)
  local marked, markers = {}, 0
  for i = 1, #emits, 2 do
    local object = emits[i]
    redis.call('LPUSH', P .. object .. events, emits[i + 1])
    if not marked[object] then
      redis.call('LPUSH', P .. objects_with_events, object)
      marked[object], markers = true, markers + 1
    end
  end
  return markers
end
-- emits: what handlers have kept of an event goes with the result that ends it, and what they have emitted is pushed.

-- Reads what is kept, where the slot's result says so. Where what is emitted cannot be pushed the batch is held, until an operator releases it: answers
-- whether it is not. Asked before anything is written: what is emitted must neither be lost nor pushed twice.
local function read_handled(slot, object)
  local kept = try('HGETALL', P .. object .. event_handled)
  -- One of a wrong type tells nothing, and goes with the event.
  local id, emits = emits_of(is_wrong_type(kept) and {} or kept)
  local wrong, found = object .. event_handled, 'hash that cannot be read'
  if emits then
    wrong, found = wrong_queue(emits)
  end
  if wrong then
    hold().back(slot, object, 'quarantine: ' .. wrong .. ' is a ' .. found)
    return false
  end
  slot.handled = { id = id, emits = emits }
  return true
end

-- Ends the event of which something is kept, unless it is behind `over`, the last one that is over; nothing: all of the batch is.
local function end_handled(slot, object, over)
  local handled = slot.handled
  if over and handled.id > over then
    return
  elseif #handled.emits == 0 then
    return delete_later(P .. object .. event_handled)
  end
  -- At once: what is pushed must not be there any more, whatever happens further on.
  call('DEL', P .. object .. event_handled)
  markers_left = markers_left + push_emits(handled.emits)
  -- Their texts may be large, and other slots have some, too.
  handled.emits = {}
end

return { read = read_handled, finish = end_handled }
end)()
return emits_made
end
local errors_made
local function errors()
errors_made = errors_made or (function()
-- errors: how the event at the head of a batch has failed, in OBJ:event.errors. What never failed has no such list, and costs no command: the tag tells.
-- A list of a wrong type holds up nothing: it is written over by nobody, and goes as any other where the event ends.
local ERRORS_MAX, ERROR_BYTES_MAX = 20, 500

-- The first bytes of a text that is too long, up to the end of a letter of UTF-8.
local function shortened(text)
  if #text <= ERROR_BYTES_MAX then
    return text
  end
  return (string.gsub(string.sub(text, 1, ERROR_BYTES_MAX), '[\192-\255]?[\128-\191]*$', ''))
end

-- Keeps the error of an event that is held with these numbers, where it has failed once more than the tag of its batch says; `count` events before it
-- are over. The error is `why`, or else what the event is held for.
local function keep_error(object, tag, count, held_id, why)
  local attempts, held_why = string.match(held_id, '^%d+ %d+ (%d+) %d+ (.*)$')
  local _, _, before = numbers(tag)
  if tonumber(attempts) <= (count > 0 and 0 or before) then
    return
  end
  why = why or string.match(held_why, '^retry: (.*)$') or string.match(held_why, '^attempts: .-: (.*)$') or held_why
  local kept = try('LPUSH', P .. object .. event_errors, text_of(now_ms) .. ' ' .. attempts .. ' ' .. shortened(why))
  if not is_wrong_type(kept) and kept > ERRORS_MAX then
    call('LTRIM', P .. object .. event_errors, 0, ERRORS_MAX - 1)
  end
end

return keep_error
end)()
return errors_made
end
local partly_made
local function partly()
partly_made = partly_made or (function()
-- partly: results that say what became of each piece of a batch: some events delivered, one buried, the rest kept or held.

-- Writes the event behind the first `count` of the batch to the dead letters, or to the log where it is completed with errors. Answers the error
-- where that cannot be done.
local function bury(slot, object, prev, count, id, why, attempts)
  local event = call('LINDEX', slot.batch, -1 - count)
  local fields = { 'id', id, 'prev', prev, 'object', object, 'event', event, 'error', why, 'attempts', attempts }
  local status, kept = 'dead', nil
  if slot.result == 'complete' then
    status = 'completed_with_errors'
    kept = not log_on and try('XADD', P .. event_log, 'MAXLEN', '~', '1000', '*', 'status', status, unpack(fields))
  else
    kept = try('XADD', P .. events_dead, '*', unpack(fields))
  end
  local failed = type(kept) == 'table' and kept.err or nil
  if log_on and not failed then
    log().row(slot, status, object, id, prev, event, why, attempts)
  end
  return failed
end

-- A part of the batch is delivered. Answers whether the slot goes on with its object because nothing of the batch remains.
local function commit_part(slot, object, last)
  local result, count, rest = slot.result, tonumber(args[slot.arg + 3]), args[slot.arg + 4]
  local tag, held_id, error_kept = args[slot.arg + 1], args[slot.arg + 5], nil
  local prev = last ~= '' and last or again().last_of(object)
  -- The last event that is over.
  local over = id_of(last) or 0
  if result == 'reject' or result == 'complete' then
    local id, why = args[slot.arg + 5], args[slot.arg + 6]
    local failed = bury(slot, object, prev, count, id, why, args[slot.arg + 7])
    if failed then
      -- The event stays where it is, held, rather than be lost. Its hand-outs are kept: no tag may come twice.
      local _, handouts, _, crashes = numbers(tag)
      local held_why = format('quarantine: %s: %s', result == 'complete' and event_log or events_dead, failed)
      result, rest, held_id = 'hold', 'inf', held_id_of(id, handouts, tonumber(args[slot.arg + 7]), crashes, held_why)
      error_kept = why
    else
      count, over = count + 1, id_of(id)
    end
  end
  if count > 0 then
    call('LTRIM', slot.batch, 0, -1 - count)
  end
  if last ~= '' then
    call('SET', P .. object .. last_event_id, last)
  end
  if slot.handled then
    emits().finish(slot, object, over)
  end
  if count > 0 and has_failed(tag) then
    call('DEL', P .. object .. event_errors)
  end
  if result == 'hold' then
    hold().batch(hold().at_of(slot), object, rest == 'inf' and rest or now_ms + tonumber(rest), held_id)
    errors()(object, tag, count, held_id, error_kept)
    return false
  elseif rest == '' then
    call('DEL', slot.tag)
    slot.prev = prev
    return true
  end
  call('SET', slot.tag, rest)
  again().give(slot, object, rest)
  return false
end

return commit_part
end)()
return partly_made
end
-- commit: what became of the batches in flight; and go on, with more of the same objects.

-- All of the batch is delivered. Answers whether the slot goes on with its object.
local function commit_all(slot, object, last)
  -- Batch and tag go together: if the call fails further on, the slot is one that has nothing yet.
  delete_later(slot.batch)
  slot.untagged = true
  set_later(P .. object .. last_event_id, last)
  if slot.handled then
    emits().finish(slot, object)
  end
  -- A tag that tells attempts is longer than the last id of its batch: 4 bytes more than the first id, which is at most 999 before.
  local tag = args[slot.arg + 1]
  if #tag > #last and has_failed(tag) then
    delete_later(P .. object .. event_errors)
  end
  if slot.result == 'yield' and call('EXISTS', P .. object .. events) == 1 then
    hold().now(slot, object)
    return false
  end
  slot.prev = last
  return true
end

-- Takes in the results. Answers the slots that go on with their objects.
local function commit(slots, tags)
  local going_on, n_going_on = {}, 0
  for n, slot in ipairs(slots) do
    local tag = tags[n]
    if tag and slot.result ~= 'free' and args[slot.arg + 1] == tag then
      local object, last = args[slot.arg], args[slot.arg + 2]
      local all = slot.result == 'done' or slot.result == 'yield'
      local ready = not slot.handled or emits().read(slot, object)
      local logged = ready and (not log_on or log().result(slot, object))
      progress = true
      if logged and (all and commit_all(slot, object, last) or not all and partly()(slot, object, last)) then
        n_going_on = n_going_on + 1
        going_on[n_going_on] = slot
      end
    elseif tag then
      again().give_unknown(slot, tag)
    end
  end
  if log_on then
    log().trim()
  end
  return going_on
end

local function go_on_with_more(slot, object)
  if rules_next and rules().pause(slot, object, nil, true) then
    return
  end
  local entry, wrong = take_first(slot, object)
  if entry then
    give(slot, slot.prev, take_more(slot, entry))
  elseif wrong then
    hold().quarantine(slot, object, wrong)
  else
    leave(slot, object)
  end
end

-- The slots take more of their objects, or release them where there is no more.
local function go_on(slots)
  local queues = {}
  for n, slot in ipairs(slots) do
    queues[n] = P .. args[slot.arg] .. events
  end
  -- One look tells whether all of them have come to their end, as is the rule where objects have few events each.
  local some_left = #queues > 0 and call('EXISTS', unpack(queues)) > 0
  if some_left then
    write_down()
  end
  for _, slot in ipairs(slots) do
    local object = args[slot.arg]
    if reply_bytes <= 0 then
      hold().now(slot, object)
    elseif some_left then
      go_on_with_more(slot, object)
    else
      leave(slot, object)
    end
  end
  write_down()
end
-- own: a slot becomes the owner of an object, and gets a batch of it.

-- Puts the object into the slot's list, in the place of the one it has left. Answers the error where that cannot be done.
local function enlist(slot, object)
  local put = slot.left and try('LSET', slot.list, '-1', object) or try('LPUSH', slot.list, object)
  if type(put) == 'table' and put.err then
    return put
  end
  slot.left = false
end

-- Slots that have claimed an object and its first event: more of them, and ids, they get together.
local claimed, claimed_queues, claimed_entries = {}, {}, {}

-- Makes the slot the owner of `object` and takes its first event. Answers 'claimed', 'empty', 'paused', or 'wrong'.
-- `owner` and `last` are what its keys tell; `sound` that where they tell nothing, there is nothing; `named` that the slot's list has the name.
local function own(slot, object, owner, last, sound, named)
  if rules_next and owner ~= 'held' and rules().pause(slot, object, last, named) then
    return 'paused'
  end
  local entry, wrong = take_first(slot, object)
  if wrong then
    hold().quarantine(slot, object, wrong)
    return 'wrong'
  elseif not entry then
    return 'empty'
  end
  if last and not id_of(last) or not last and not sound and call('EXISTS', P .. object .. last_event_id) == 1 then
    hold().put_back(slot, object, entry)
    hold().quarantine(slot, object, object .. last_event_id)
    return 'wrong'
  end
  -- A key that told nobody, and yet is there, has a wrong type: nobody may pass over what is held.
  if not owner and not sound and call('EXISTS', P .. object .. event_worker) == 1 and hold().is_held(object) then
    hold().put_back(slot, object, entry)
    hold().quarantine_held(slot, object)
    return 'wrong'
  end
  local failed = not named and enlist(slot, object)
  if failed then
    hold().put_back(slot, object, entry)
    error(failed)
  end
  set_later(P .. object .. event_worker, slot.w)
  if last and forget_ms > 0 then
    -- Set anew it has no time to live: it must not be forgotten while events that follow on it are in flight.
    set_later(P .. object .. last_event_id, last)
  end
  entry[4] = last or '0'
  local n = #claimed + 1
  claimed[n], claimed_queues[n], claimed_entries[n] = slot, P .. object .. events, entry
  claims, slot.has, slot.object, progress = claims - 1, true, object, true
  return 'claimed'
end

-- Gives the slots that have claimed what else there is, and ids. Where objects have one event each, as is the rule while nothing has piled up, one
-- look tells.
local function fill()
  local some_left = #claimed > 0 and call('EXISTS', unpack(claimed_queues)) > 0
  for n, slot in ipairs(claimed) do
    local entry = claimed_entries[n]
    if some_left and reply_bytes > 0 then
      take_more(slot, entry)
    end
    give(slot, entry[4], entry)
  end
end
local markers_made
local function markers()
markers_made = markers_made or (function()
-- markers: the objects to which markers lead.

-- The markers are read in chunks from the tail and trimmed by as many as were used. Of a chunk, only objects that nobody owns lead anywhere,
-- each of them once: who they are, how many markers come before, and their last ids.
local chunk_size, chunk_read = 0, 0
local free, free_at, before, last_ids, sound = {}, 0, {}, {}, false
-- Asked about once in a call. The empty name only wakes.
local seen = { [''] = true }

local function trim_markers()
  if markers_used > 0 then
    call('LTRIM', P .. objects_with_events, 0, -1 - markers_used)
    markers_left = markers_left - markers_used
    progress, markers_used = true, 0
  end
end

-- Leaves those that nobody owns. Answers whether nobody's key is there: MGET tells nothing of a key of a wrong type either.
local function keep_free(objects, places, owner_keys)
  local owned = #objects > 0 and call('EXISTS', unpack(owner_keys)) or 0
  if owned == 0 then
    free, before = objects, places
    return true
  end
  for n, owner in ipairs(call('MGET', unpack(owner_keys))) do
    if owner then
      owned = owned - 1
    else
      free[#free + 1], before[#before + 1] = objects[n], places[n]
    end
  end
  return owned == 0
end

-- Whether any of those that nobody owns has events. Asked only where markers before have led nowhere: it costs what it spares elsewhere.
local function any_events()
  local queues = {}
  for n, object in ipairs(free) do
    queues[n] = P .. object .. events
  end
  return #queues > 0 and call('EXISTS', unpack(queues)) > 0
end

-- The last ids of those that nobody owns. Answers whether every key that told nothing is not there.
local function ask_last_ids()
  local keys, untold = {}, {}
  for n, object in ipairs(free) do
    keys[n] = P .. object .. last_event_id
  end
  last_ids = #keys > 0 and call('MGET', unpack(keys)) or {}
  for n, last in ipairs(last_ids) do
    untold[#untold + 1] = not last and keys[n] or nil
  end
  return #untold == 0 or call('EXISTS', unpack(untold)) == 0
end

-- Reads the next chunk, once the one before is used up. Answers whether there is one.
local function read_chunk()
  trim_markers()
  chunk_read, free, free_at, before = 0, {}, 0, {}
  -- A run of markers that lead nowhere is passed over in larger and larger strides.
  chunk_size = math.min(math.max(chunk_size * 2, claims), 512, markers_max, markers_left)
  if chunk_size <= 0 then
    return false
  end
  local chunk = call('LRANGE', P .. objects_with_events, -chunk_size, -1)
  chunk_read = #chunk
  markers_max = markers_max - chunk_read
  local objects, places, owner_keys, n = {}, {}, {}, 0
  for i = chunk_read, 1, -1 do
    local object = chunk[i]
    if not seen[object] then
      seen[object] = true
      n = n + 1
      objects[n], places[n], owner_keys[n] = object, chunk_read - i, P .. object .. event_worker
    end
  end
  local none_untold = keep_free(objects, places, owner_keys)
  if chunk_size > claims and not any_events() then
    free = {}
  end
  sound = ask_last_ids() and none_untold
  return true
end

-- Claims the object of the next marker that leads to one. Answers 'claimed', 'dropped', or nil where there is no marker to look at.
local function claim_marker(slot)
  local looked = markers_used < chunk_read
  repeat
    while free_at < #free do
      free_at = free_at + 1
      local object = free[free_at]
      -- What a chunk was told of an object before it was put aside does not hold any more.
      if not put_aside[object] then
        markers_used = before[free_at]
        local got = own(slot, object, false, last_ids[free_at], sound, false)
        -- Only now: a marker is there until something else covers its object.
        markers_used = markers_used + 1
        return got == 'claimed' and got or 'dropped'
      end
    end
    markers_used = chunk_read
    local read = read_chunk()
    looked = looked or read
  until not read
  return looked and 'dropped' or nil
end

return { claim = claim_marker, trim = trim_markers }
end)()
return markers_made
end
local held_made
local function held()
held_made = held_made or (function()
-- held: held objects that are due.

-- A held batch, handed out once more.
local function claim_batch(slot, object, first, handouts, attempts, crashes)
  local batch = try('LRANGE', P .. object .. events_held, 0, -1)
  local last = try('GET', P .. object .. last_event_id)
  local wrong = is_wrong_type(batch) and events_held or is_wrong_type(last) and last_event_id or last and not id_of(last) and last_event_id
  if wrong or #batch == 0 then
    local why = hold().quarantined_by(object .. (wrong or events_held))
    call('ZADD', P .. objects_held, 'inf', object)
    call('SET', P .. object .. events_held_id, held_id_of(first, handouts, attempts, crashes, why))
    quarantined[#quarantined + 1] = object
    quarantined[#quarantined + 1] = why
    return 'dropped'
  end
  local tag = tag_of(first, handouts + 1, tonumber(attempts), tonumber(crashes))
  local failed = enlist(slot, object)
  if failed then
    error(failed)
  end
  call('ZREM', P .. objects_held, object)
  call('RENAME', P .. object .. events_held, slot.batch)
  call('DEL', P .. object .. events_held_id)
  call('MSET', P .. object .. event_worker, slot.w, slot.tag, tag)
  again().give(slot, object, tag)
  claims = claims - 1
  return 'claimed'
end

-- Claims a due held object. Answers 'claimed' or 'dropped'.
local function claim_held(slot, object)
  progress = true
  local found = call('MGET', P .. object .. event_worker, P .. object .. last_event_id, P .. object .. events_held_id)
  if not found[1] and call('EXISTS', P .. object .. event_worker) == 1 then
    hold().quarantine_held(slot, object)
    return 'dropped'
  elseif found[1] ~= 'held' then
    call('ZREM', P .. objects_held, object)
    return 'dropped'
  elseif rules_next and rules().pause_held(object) then
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
    quarantined[#quarantined + 1] = hold().quarantined_by(object .. events_held_id) .. ' and tells no ids'
    return 'dropped'
  end
  local got = own(slot, object, found[1], found[2], false, false)
  if got ~= 'wrong' then
    call('ZREM', P .. objects_held, object)
    call('DEL', P .. object .. events_held_id)
  end
  if got == 'empty' then
    call('DEL', P .. object .. event_worker)
    forget_later(object)
  end
  return got == 'claimed' and got or 'dropped'
end

return claim_held
end)()
return held_made
end
local strays_made
local function strays()
strays_made = strays_made or (function()
-- strays: names that a pop has moved to a slot too late.

-- A pop has answered after its slot was given something else: what it moved must not wait behind that.
local function return_strays(slot, slots)
  for _, other in ipairs(slots) do
    slot.left = slot.left or other.number == slot.number and other.left
  end
  for _, object in ipairs(call('LRANGE', slot.list, 0, -1)) do
    if object ~= slot.left and call('MGET', P .. object .. event_worker)[1] ~= slot.w then
      hold().stray(hold().at_of(slot), object)
      -- The empty name only wakes: it does not become a marker again.
      markers_left, progress = markers_left + (object == '' and 0 or 1), true
    end
  end
end

return return_strays
end)()
return strays_made
end
-- claim: free slots get objects: first of the names in their own lists, then of due held objects and markers in turn.

-- The names in the slot's own W:object: moved there by a pop, or left there by a lost reply.
local function claim_taken(slot)
  local w, taken = slot.w, call('LRANGE', slot.list, 0, -1)
  for i = #taken, 1, -1 do
    local object = taken[i]
    local found = call('MGET', P .. object .. event_worker, P .. object .. last_event_id)
    progress = true
    -- A name may be there twice, by two pops: the second one says nothing more.
    if object == '' or object == slot.object or found[1] and found[1] ~= w then
      call('LREM', slot.list, '1', object)
    elseif slot.has or claims <= 0 or reply_bytes <= 0 then
      if found[1] then
        hold().now(slot, object)
      else
        hold().stray(hold().at_of(slot), object)
        markers_left = markers_left + 1
      end
    elseif own(slot, object, found[1], found[2], false, true) == 'empty' then
      call('LREM', slot.list, '1', object)
      delete_later(P .. object .. event_worker)
      forget_later(object)
    end
    -- Another slot's list may have the same name.
    write_down()
  end
end

local due, due_at, due_end = {}, 0, false
local function next_due()
  repeat
    if due_at == #due and not due_end then
      due, due_at = call('ZRANGE', P .. objects_held, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, claims), 0
      due_end = #due == 0
    end
    due_at = due_end and 0 or due_at + 1
  until due_end or not put_aside[due[due_at]]
  return due[due_at]
end

-- Held objects and markers in turn, one and one; where one side has nothing, the other goes on. Markers left that this call may not look at
-- are not nothing: their turn goes on with the next call, or an object behind the many that busy ones leave would wait for turns of all of those.
local function claim(slot)
  local without = 0
  while without < 2 and claims > 0 and reply_bytes > 0 and not slot.has do
    local got
    if from == 'held' then
      local object = not due_end and next_due()
      got, from = object and held()(slot, object), 'markers'
    else
      got = markers().claim(slot)
      if not got and markers_left > 0 then
        return
      end
      -- A marker that led nowhere does not use up the turn of the markers.
      from = got == 'dropped' and 'markers' or 'held'
    end
    without = got and 0 or without + 1
  end
end
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
  claims = math.min(claims, without)
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
local more = rules_next == '0' or claims_wanted and progress and (markers_left > 0 or due_ms == 0 or reply_bytes <= 0)
if rules_next and rules_next ~= 'never' then
  local end_ms = math.max(tonumber(rules_next) - now_ms, 0)
  due_ms = due_ms < 0 and end_ms or math.min(due_ms, end_ms)
end
return { 'ok', due_ms, more and 1 or 0, from, entries, quarantined }
end)()
end)()
