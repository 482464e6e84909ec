-- sent: records that a request with events of an object is sent to a receiver, or that it is over.
--
-- Purpose   An event is not sent again as long as an earlier request of its object may be open at
--           the receiver. A worker process calls before it sends a request: the script gives the
--           request a number and a time, unless another request of the object may be open. After
--           this time and a margin, the request counts as over, whoever has sent it. If the request
--           is known to be over before, the process calls again. A repeated call changes nothing
--           but the number and the time.
-- Keys      KEYS[1] next.event.id (string, read and write): the number of a request is an id, which
--           no event gets
--           OBJ:event.sent (string, read and write): `NUMBER MS REQUEST`; MS is its first time to
--           live
--           event.worker:NAME:lease, OBJ:event.worker, event.worker:W:event.id (string),
--           event.workers (hash): read
-- Arguments prefix
--           object
--           request (up to 64 bytes): the caller's name for requests of one delivery of which each is
--           sent only after the one before is over
--           to record that the request is over: nothing more. To record that it is sent:
--           name
--           token (UUID)
--           slot
--           tag of its batch
--           the time limit of the request, ms (1 to 3,600,000)
--           the margin, ms
--           the highest id that the caller has seen
-- Replies   {'sent', number, time at which the time limit ends, ms since 1970}
--           {'earlier', ms}: another request of the object may be open, for this time at most
--           {'over'}
--           {'other'}: the slot has another batch or object
--           {'counter', value}: next.event.id is no whole number below 2^53
--           {'lapsed'}
--           {'fenced', lease}
-- Keeps     I1 to I6: writes only OBJ:event.sent, and raises next.event.id
--           A call that arrives after its repetition may record a request that was never sent. Then
--           the object waits until the time of this request is over
-- Cost      2 commands for a request that is over, else 7; 1 more if the clock has been set back
local object, request, name, token, slot, tag = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local sent_key = P .. object .. K.event_sent

local found = redis_call('GET', sent_key)
local found_ms, found_request = string.match(found or '', '^%d+ (%d+) (%S+)$')
local is_own = found_request == request
if not name then
  if is_own then
    redis_call('DEL', sent_key)
  end
  return { 'over' }
end
local limit_ms, margin_ms, highest = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])

local refused = rare.fence.check(name, token)
if refused then
  return refused
end
local w = rare.worker.id(name, slot)
local owner = redis_call('MGET', P .. object .. K.event_worker, P .. K.WORKER .. w .. K.worker_event_id)
if owner[1] ~= w or rare.tag.split(owner[2] or '') ~= tag then
  return { 'other' }
end
if found and not is_own then
  -- Redis keeps the end of a key, not its time to live: if the clock is set back, the end may be an
  -- hour late. A value of another program may have no end.
  local left_ms, most_ms = redis_call('PTTL', sent_key), tonumber(found_ms) or limit_ms + margin_ms
  if left_ms < 0 or left_ms > most_ms then
    left_ms = most_ms
    redis_call('PEXPIRE', sent_key, string.format('%.0f', most_ms))
  end
  return { 'earlier', left_ms }
end

local given = redis_call('GET', KEYS[1])
local number = given and ids.parse(given)
if given and not number or number and number >= ids.MAX then
  return { 'counter', given }
elseif not number or number < highest then
  number = rare.jump.beyond(math.max(number or 0, highest))
end
local text, whole_ms = ids.text(number + 1), string.format('%.0f', limit_ms + margin_ms)
redis_call('SET', KEYS[1], text)
redis_call('SET', sent_key, text .. ' ' .. whole_ms .. ' ' .. request, 'PX', whole_ms)
return { 'sent', text, string.format('%.0f', rare.time.now_ms() + limit_ms) }
