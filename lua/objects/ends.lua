-- ends: writes the ends of awaited events (values/awaited.lua).
--
--   OBJ LF NAME:event.end  a JSON object: `status` as in the log, `id`, `attempts`, `error` if there
--                          is one, and `results` if handlers had any
--   LF INBOX:event.ends    the keys of ends that were written for this inbox, newest first. A process
--                          that waits pops them
-- Commands: 1 per event with a key, or whose batch was in hand before; if it is awaited, up to 5 more,
-- and 2 questions about rights.

local SECONDS_MAX = 604800
-- A process that waits also looks for its ends without the inbox, which may lose entries.
local INBOX_MAX, INBOX_MS = '1023', '60000'

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
  local seconds, name = rare.awaited.parse(key)
  if not name then
    return
  end
  local at = rare.awaited.at(object, name)
  local inbox = rare.awaited.inbox_of(redis_try('GET', at))
  local ms = ids.text(1000 * math.min(tonumber(seconds), SECONDS_MAX))
  redis_try('SET', at, text_of(status, id, why, attempts, results), 'PX', ms)
  local ends = inbox and P .. '\n' .. inbox .. PRODUCER.event_ends
  -- Without these rights an inbox could grow for ever.
  if ends and not rare.emits.denied({ { 'LTRIM', ends, '0', '0' }, { 'PEXPIRE', ends, '1' } }) then
    redis_try('LPUSH', ends, at)
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

return { write = write, of_event = of_event }
