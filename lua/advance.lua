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
--           (0: never); highest id the caller has seen (0: none); room for suspects (lib/suspects.lua); then, where the event log is on, `log`, rows kept (about), ms they are kept (0: however old); then per slot, its number and
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
--             why of a quarantined object: `quarantine: …`, it is held for an operator; `foreign: …`, without a namespace its name begins with a
--             brace, so its marker is dropped and none of its keys is touched; at most 64 of these, each name cut at 512 bytes
--           | {'lapsed'} | {'fenced', lease} | {'counter', value}: next.event.id is not a number or at its end
-- Keeps     I1 to I6
-- Cost      A call claims 512 objects at most, and lets 256 go that cannot be claimed. It takes at most 4,096 events, of which the first of each
--           batch counts as four, and one batch more than fits into the reply's bytes. It pauses 256 objects, wakes 64, and asks for 2,048 fields
--           of rules at most; the last object may ask for 18 more. The caller bounds the results, their rows in the log and what handlers have kept
--           (src/scripts/load.rs).
--           Commands: about 20 per call; 2 per claim; 2 or more per batch of more than one event; 1 per object that is looked up in the rules.
--           With the log on, 1 per event that is finalized, 2 per batch and 3 per call. 1 or 2 per event that fails, and 1 where one ends that had
--           failed. 1 per slot that is said to be handled, 1 per event that handlers have emitted for it, and 2 per object of these. 2 per due
--           suspect there is no room for.
local args = ARGV
local name, token = args[2], args[3]
local batch_max, batch_bytes, reply_bytes = tonumber(args[4]), tonumber(args[5]), tonumber(args[6])
local claims, markers_max, from, forget_ms = tonumber(args[7]), tonumber(args[8]), args[9], tonumber(args[10])
local highest = tonumber(args[11])
local SLOT_ARGS, LOG_ARGS = 13, 3
local log_on = args[SLOT_ARGS] == 'log'

local call, try, format = redis.call, redis.pcall, string.format

-- Fence, and the shared keys read once: one of a wrong type fails here, before anything is written.
local refused = fence(name, token)
if refused then
  return refused
end
local now_ms = now()
local counter_text = call('GET', P .. next_event_id)
local counter_before = id_of(counter_text or '0')
local counter = counter_before
-- `connect` has written the counter: an absent one was evicted, and a lower one is from an earlier state of Redis.
if counter and (not counter_text or counter < highest) then
  counter = beyond(math.max(counter, highest))
end
if not counter or counter + 1024 * batch_max > ID_MAX then
  return { 'counter', counter_text or '0' }
end
-- Makes the counter jump if an id above it turns up, which was given before. Returns whether there is room for new ids.
local function rise_above(id)
  if id > counter then
    local risen = beyond(id)
    if risen + 1024 * batch_max > ID_MAX then
      return false
    end
    counter = risen
  end
  return true
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

-- Reports a name that is dropped because it may be one of another namespace. The reply has few of them, and of each what a name may have.
local function report_foreign(object)
  if #quarantined < 128 then
    quarantined[#quarantined + 1] = string.sub(object, 1, 512)
    quarantined[#quarantined + 1] = 'foreign: it may be an object of another namespace, so its marker is dropped'
  end
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
