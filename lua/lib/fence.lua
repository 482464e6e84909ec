-- fence: every write of a worker process begins here.

-- Returns the reply to give, before anything is touched, to a caller whose token is not in `lease`:
-- `lapsed` if the lease is gone and nobody took the name since, else `fenced` with the present
-- lease.
local function refused(name, token, lease)
  if not lease then
    local value = call('HGET', P .. K.event_workers, name)
    if value and string.match(value, '^%d+ (%S+)') == token then
      return { 'lapsed' }
    end
  end
  return { 'fenced', lease or '' }
end

-- Returns nil if the lease of `name` holds `token`; else the reply to give.
local function check(name, token)
  local lease = call('GET', P .. K.WORKER .. name .. K.worker_lease)
  if lease and string.sub(lease, 1, #token) == token then
    return nil
  end
  return refused(name, token, lease)
end

return { check = check, refused = refused }
