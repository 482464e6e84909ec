-- awaited: events whose ends their producers await.
--
-- An awaited emit queues its event under the key `?SECONDS NAME`, as a schedule that is due at once.
-- The step that ends the event writes how it ended, which Redis keeps for SECONDS. NAME is the
-- idempotency key of the emit.
--   OBJ LF NAME:event.end  `?SECONDS INBOX` until the event ends. Then its end, as objects/ends.lua
--                          writes it. INBOX may be empty

local PENDING_MS = '604800000'

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
  return P .. rare.schedules.member(object, name) .. K.event_end
end

-- Notes that the event with this name is awaited.
local function begin(object, name, seconds, inbox)
  redis_call('SET', at(object, name), '?' .. seconds .. ' ' .. inbox, 'PX', PENDING_MS)
end

-- Returns whether an awaited event with this name is queued, in hand or held. An event that was
-- cancelled with plain commands has no end, but is over.
local function is_pending(object, name)
  local seconds = string.match(redis_call('GET', at(object, name)) or '', '^%?(%d+) ')
  local key = seconds and key_of(seconds, name)
  if key and redis_call('HEXISTS', P .. object .. K.events_scheduled_of, key) == 0 then
    local taken = redis_call('GET', P .. object .. K.event_key)
    return taken and string.match(taken, '^%d+ (.*)$') == key
  end
  return key ~= nil
end

-- Returns the inbox in a value; nil if there is none.
local function inbox_of(value)
  return type(value) == 'string' and string.match(value, '^%?%d+ (%w+)$') or nil
end

return { key_of = key_of, parse = parse, at = at, begin = begin, is_pending = is_pending, inbox_of = inbox_of }
