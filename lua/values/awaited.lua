-- awaited: events whose ends their producers await.
--
-- An awaited emit queues its event under the key `?SECONDS NAME`, as a schedule that is due at once.
-- The step that ends the event writes how it ended, which Redis keeps for SECONDS. NAME is the
-- idempotency key of the emit.
--   OBJ LF NAME:event.end  `?INBOX` until the event ends. Then its end, as objects/ends.lua writes it.
--                          INBOX may be empty

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
local function begin(object, name, inbox)
  redis_call('SET', at(object, name), '?' .. inbox, 'PX', PENDING_MS)
end

-- Returns whether the event with this name is awaited, and has not ended.
local function is_pending(object, name)
  return string.byte(redis_call('GET', at(object, name)) or '') == 63
end

-- Returns the inbox in a value; nil if there is none.
local function inbox_of(value)
  return type(value) == 'string' and string.match(value, '^%?(%w+)$') or nil
end

return { key_of = key_of, parse = parse, at = at, begin = begin, is_pending = is_pending, inbox_of = inbox_of }
