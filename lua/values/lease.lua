-- lease: the value of event.worker:NAME:lease, and its time to live.
--
-- The value is `TOKEN HOST PID START LEASEms`. The text after TOKEN is the holder, as the process
-- that has the lease writes it. LEASE is the length of the lease in ms.

-- Returns the value of a lease.
local function text(token, holder)
  return token .. ' ' .. holder
end

-- Returns whether the lease has this token.
local function is_of(lease, token)
  return string.sub(lease, 1, #token) == token
end

-- Returns the token of the lease; nil if the value has none.
local function token_of(lease)
  return string.match(lease, '^(%S+)')
end

-- Returns the length of the lease, ms; nil if the value has none.
local function length_ms(lease)
  return ids.parse(string.match(lease, ' (%d+)ms$') or '')
end

-- The time after which a lease ends that has no end and no length, ms.
local BARE_MS = 600000

-- Cuts the time to live of the key to `most_ms` (nil: not known). Returns the time left, ms. Redis
-- keeps the end of a lease, not its length: after a step of the clock the end may be an hour late. A
-- lease that was copied or changed by hand may have no end (-1).
local function cut(key, most_ms)
  local left_ms = redis_call('PTTL', key)
  if left_ms == -1 or most_ms and left_ms > most_ms then
    left_ms = most_ms or BARE_MS
    redis_call('PEXPIRE', key, left_ms)
  end
  return left_ms
end

return { text = text, is_of = is_of, token_of = token_of, length_ms = length_ms, cut = cut }
