-- rights: whether the Redis user may do everything the scripts do.
-- A right that is missing in the middle of a script could strand an event.

-- Answers the first command that is not allowed, or nil.
local function missing_right()
  local key, other = P .. K.next_event_id, P .. K.objects_with_events
  local needed = {
    { 'BLMOVE', other, key, 'RIGHT', 'LEFT', '1' },
    { 'DEL', key }, { 'EXISTS', key }, { 'GET', key }, { 'HDEL', key, 'f' }, { 'HGET', key, 'f' }, { 'HGETALL', key }, { 'HLEN', key },
    { 'HMGET', key, 'f' }, { 'HSCAN', key, '0' }, { 'HSET', key, 'f', 'v' }, { 'LINDEX', key, '0' }, { 'LLEN', key },
    { 'LMOVE', other, key, 'RIGHT', 'LEFT' }, { 'LPUSH', key, 'v' }, { 'LRANGE', key, '0', '0' }, { 'LREM', key, '1', 'v' },
    { 'LSET', key, '0', 'v' }, { 'LTRIM', key, '0', '0' }, { 'MGET', key }, { 'MSET', key, 'v' }, { 'PEXPIRE', key, '1' }, { 'PTTL', key },
    { 'RENAME', key, other }, { 'RPOP', key, '1' }, { 'RPUSH', key, 'v' }, { 'SET', key, 'v' }, { 'STRLEN', key }, { 'TIME' },
    { 'TYPE', key }, { 'XADD', key, '*', 'f', 'v' }, { 'XTRIM', key, 'MAXLEN', '1' }, { 'ZADD', key, '0', 'm' }, { 'ZCARD', key },
    { 'ZRANGE', key, '0', '0' }, { 'ZREM', key, 'm' }, { 'ZSCORE', key, 'm' },
  }
  for _, command in ipairs(needed) do
    if not redis.acl_check_cmd(unpack(command)) then
      return command[1]
    end
  end
end

return { missing = missing_right }
