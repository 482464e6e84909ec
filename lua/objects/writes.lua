-- writes: the keys that this call sets and deletes.
--
-- These writes wait until all slots have reached the same step, so that one command does the writes
-- of all slots. DEL and MSET cannot fail, because they accept keys of any type. Code that reads
-- such a key flushes first. The owner keys of objects that this call has claimed are an exception:
-- `call.claimed` and the names that `markers` has seen tell what the call does with them.
local sets, sets_n = { nil, nil, nil, nil, nil, nil }, 0
local deletes, deletes_n = { nil, nil, nil }, 0
local expires, expires_n = {}, 0

-- Forgets what an earlier call has left that has failed.
local function begin()
  sets_n, deletes_n, expires_n = 0, 0, 0
end

local function set(key, value)
  local n, list = sets_n, sets
  list[n + 1] = key
  list[n + 2] = value
  sets_n = n + 2
end

local function delete(key)
  local n = deletes_n + 1
  deletes[n] = key
  deletes_n = n
end

-- Gives a last id its time to live, if last ids are forgotten.
local function expire(key)
  if call.bounds.forgets then
    expires_n = expires_n + 1
    expires[expires_n] = key
  end
end

-- MSET removes a time to live, so times to live come last.
local function flush()
  if deletes_n > 0 then
    redis_call('DEL', unpack(deletes, 1, deletes_n))
    deletes_n = 0
  end
  if sets_n > 0 then
    redis_call('MSET', unpack(sets, 1, sets_n))
    sets_n = 0
  end
  for k = 1, expires_n do
    redis_call('PEXPIRE', expires[k], call.bounds.forget_ms)
  end
  expires_n = 0
end

return { begin = begin, set = set, delete = delete, expire = expire, flush = flush }
