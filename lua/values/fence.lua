-- fence: refuses callers without the lease. Every write of a worker process begins here.

-- Returns the reply for a caller whose token is not in `lease`:
--   {'lapsed'}         the lease is gone, and no process has taken the name since. The registration
--                      may be gone, too: then no process is known to have taken the name
--   {'fenced', lease}  another process has taken the name; `lease` is '' if its lease is gone, too
local function refused(name, token, lease)
  if not lease then
    local _, last_token = rare.registry.find(name)
    if last_token == token or not last_token or last_token == rare.registry.UNKNOWN then
      return { 'lapsed' }
    end
  end
  return { 'fenced', lease or '' }
end

-- Returns nil if the lease of `name` has `token`, else the reply to give.
local function check(name, token)
  local lease = redis_call('GET', P .. K.WORKER .. name .. K.worker_lease)
  if lease and rare.lease.is_of(lease, token) then
    return nil
  end
  return refused(name, token, lease)
end

return { check = check, refused = refused }
