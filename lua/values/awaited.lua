-- awaited: events whose ends their producers await.
--
-- An awaited emit queues its event under the key `?SECONDS NAME`, as a schedule that is due at once.
-- The step that ends the event writes how it ended, which Redis keeps for SECONDS. NAME is the
-- idempotency key of the emit.
--   OBJ LF NAME:event.end  `?SECONDS INBOX DIGEST` until the event ends. Then its end, as
--                          objects/ends.lua writes it. INBOX may be empty. DIGEST is that of the event

local SECONDS_MAX, PENDING_MS = 604800, '604800000'

-- Returns the key under which an awaited event is queued.
local function key_of(seconds, name)
  return '?' .. seconds .. ' ' .. name
end

-- Returns SECONDS and the name of the event that has this key; nil if it is not awaited.
local function parse(key)
  return string.match(key, '^%?(%d+) (.+)$')
end

-- Returns the Redis key of the end of an event with this name.
local function at(object, name)
  return P .. rare.schedules.member(object, name) .. PRODUCER.event_end
end

-- Returns SECONDS and INBOX of an awaited emit; nil if its arguments are not valid.
local function asked(text, name)
  local seconds, inbox = string.match(text, '^(%d+) (%w*)$')
  local number = tonumber(seconds)
  if number and number >= 1 and number <= SECONDS_MAX and #inbox <= 32 and name ~= '' and not string.find(name, '\n', 1, true) then
    return seconds, inbox
  end
end

-- Notes that the event with this name is awaited.
local function begin(object, name, seconds, inbox, digest)
  redis_call('SET', at(object, name), '?' .. seconds .. ' ' .. inbox .. ' ' .. digest, 'PX', PENDING_MS)
end

-- Returns the digest of the event with this name that is queued, in hand or held; '' if the note of it
-- is lost, nil if there is none. An event that was cancelled with plain commands has no end, but is
-- over. `seconds`: those of the present emit, in case the note is lost.
local function pending(object, name, seconds)
  local noted, digest = string.match(redis_call('GET', at(object, name)) or '', '^%?(%d+) %w* (%x+)$')
  local key = key_of(noted or seconds, name)
  if redis_call('HGET', P .. object .. K.events_scheduled_of, key) then
    return digest or ''
  end
  local taken = redis_call('GET', P .. object .. K.event_key)
  return taken and string.match(taken, '^%d+ (.*)$') == key and (digest or '') or nil
end

-- Returns the inbox in a value; nil if there is none.
local function inbox_of(value)
  return type(value) == 'string' and string.match(value, '^%?%d+ (%w+) ') or nil
end

return { asked = asked, key_of = key_of, parse = parse, at = at, begin = begin, pending = pending, inbox_of = inbox_of }
