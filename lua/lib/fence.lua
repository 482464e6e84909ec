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
