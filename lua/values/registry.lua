-- registry: the registered names of worker processes, in event.workers and two sorted sets.
--
-- event.workers           per name its registration `SLOTS TOKEN MS`: the most slots it ever ran,
--                         its last token, its last sign of life
-- event.workers.watched   names with a lease, or with something in their slots
-- event.workers.departed  names without a lease and with nothing in their slots
--
-- The scores of the two sets are the times of the next looks, in ms.

-- The token of a registration that a sweep has written for a name that had lost its registration.
local UNKNOWN = '-'

-- Returns slots, token and last sign of life (ms) of a registration; 0, nil and 0 if the value is
-- invalid.
local function parse(value)
  local slots, token, at_ms = string.match(value, '^(%d+) (%S+) (%d+)$')
  return tonumber(slots) or 0, token, tonumber(at_ms) or 0
end

-- Returns slots, token and last sign of life (ms) of the name's registration; 0, nil and 0 if the
-- name has no registration.
local function find(name)
  return parse(redis_call('HGET', P .. K.event_workers, name) or '')
end

-- Writes the registration of a name.
local function register(name, slots, token, at_ms)
  redis_call('HSET', P .. K.event_workers, name, string.format('%d %s %.0f', slots, token, at_ms))
end

-- Raises WRONGTYPE, before the first write, if one of the three keys has a wrong type.
local function check_types()
  redis_call('HLEN', P .. K.event_workers)
  redis_call('ZCARD', P .. K.event_workers_watched)
  redis_call('ZCARD', P .. K.event_workers_departed)
end

-- Makes the name a watched one; `look_ms`: the time of the next look. Returns 1 if it was none, else 0.
local function watch(name, look_ms)
  redis_call('ZREM', P .. K.event_workers_departed, name)
  return redis_call('ZADD', P .. K.event_workers_watched, look_ms, name)
end

-- The times of the looks at a departed name, ms after its last sign of life. One more look comes
-- when the name is forgotten.
local LOOKS_MS = { 1000, 10000, 60000, 600000, 3600000 }

-- The end of the token of a process whose name is random, so that no process takes the name again;
-- and the end that `detach` adds to it.
local ONCE, LEFT = '-once', '-left'
-- The time after which the name of such a process is forgotten, if the process has detached (ms). A
-- pop that it has sent before is over by then, because its connections are closed.
local LEFT_MS = 600000

-- Returns the token that a name has after its process has detached.
local function left(token)
  return string.sub(token, -#ONCE) == ONCE and token .. LEFT or token
end

-- Returns the time after which a departed name with this token is forgotten; `forget_ms`: that of
-- other names.
local function forget_after(token, forget_ms)
  return string.sub(token, -#LEFT) == LEFT and math.min(LEFT_MS, forget_ms) or forget_ms
end

-- Makes the name a departed one, with the last sign of life `at_ms`. The name is forgotten
-- `forget_ms` later.
local function depart(name, at_ms, now_ms, forget_ms)
  local next_ms = at_ms + forget_ms + 1
  for _, look_ms in ipairs(LOOKS_MS) do
    if look_ms < forget_ms and at_ms + look_ms > now_ms then
      next_ms = at_ms + look_ms
      break
    end
  end
  redis_call('ZREM', P .. K.event_workers_watched, name)
  redis_call('ZADD', P .. K.event_workers_departed, next_ms, name)
end

return {
  UNKNOWN = UNKNOWN,
  parse = parse,
  find = find,
  register = register,
  check_types = check_types,
  watch = watch,
  left = left,
  forget_after = forget_after,
  depart = depart,
}
