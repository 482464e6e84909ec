-- ends: the ends of events whose producers await them.
--
-- An awaited emit queues its event under the key `?SECONDS NAME`, as a schedule that is due at once.
-- The step that ends the event writes how it ended, which Redis keeps for SECONDS. NAME is the
-- idempotency key of the emit.
--   OBJ LF NAME:event.end  `?INBOX` until the event ends. Then a JSON object: `status` as in the
--                          log, `id`, `attempts`, `error` if there is one, and `results` if handlers
--                          had any. INBOX may be empty
--   LF INBOX:event.ends    the keys of ends that were written for this inbox, newest first. A process
--                          that waits pops them

local SECONDS_MAX, PENDING_MS = 604800, '604800000'
-- A process that waits asks for its ends anyway, so an inbox may lose entries.
local INBOX_MAX, INBOX_MS = '1023', '60000'

-- Returns the key under which an awaited event is queued.
local function key_of(seconds, name)
  return '?' .. seconds .. ' ' .. name
end

-- Returns the Redis key of the end of an event with this name.
local function at(object, name)
  return P .. rare.schedules.member(object, name) .. K.event_end
end

-- Notes that the event with this name is awaited.
local function await(object, name, inbox)
  redis_call('SET', at(object, name), '?' .. inbox, 'PX', PENDING_MS)
end

-- Returns whether the event with this name is awaited, and has not ended.
local function is_pending(object, name)
  local found = redis_call('GET', at(object, name))
  return found and string.byte(found) == 63
end

-- Returns the text of an end.
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

-- Writes the end of the event that had this key; nothing if nobody awaits it. If the end cannot be
-- written, the producer waits in vain, but the event has ended.
local function write(object, key, status, id, why, attempts, results)
  local seconds, name = string.match(key, '^%?(%d+) (.+)$')
  if not name then
    return
  end
  local key_at = at(object, name)
  local pending = redis_try('GET', key_at)
  local inbox = type(pending) == 'string' and string.match(pending, '^%?(%w+)$')
  local ms = ids.text(1000 * math.min(tonumber(seconds), SECONDS_MAX))
  redis_try('SET', key_at, text_of(status, id, why, attempts, results), 'PX', ms)
  if inbox then
    local ends = P .. '\n' .. inbox .. K.event_ends
    redis_try('LPUSH', ends, key_at)
    redis_try('LTRIM', ends, '0', INBOX_MAX)
    redis_try('PEXPIRE', ends, INBOX_MS)
  end
end

-- Writes the end of the event with this id, if its key stands in OBJ:event.key. Does not delete
-- that key.
local function of_event(object, status, id, why, attempts, results)
  local value = redis_try('GET', P .. object .. K.event_key)
  local of, key = string.match(type(value) == 'string' and value or '', '^(%d+) (.*)$')
  if of == id then
    write(object, key, status, id, why, attempts, results)
  end
end

return { at = at, key_of = key_of, await = await, is_pending = is_pending, write = write, of_event = of_event }
