-- rights: finds a command of the scripts that the Redis user may not use.
--
-- A missing right in the middle of a script could strand an event, so it is found before the first
-- write. RIGHTS stands for the names of the commands, with blanks between them: src/wire/lua.rs
-- collects them from the texts of all scripts for workers, of all scripts for operators, or of repair.
local key, other = P .. K.next_event_id, P .. K.objects_with_events

-- The arguments of each command, for the test of rights only.
local ARGUMENTS = {
  BLMOVE = { other, key, 'RIGHT', 'LEFT', '1' }, BZPOPMIN = { key, '1' }, DEL = { key }, EXISTS = { key }, GET = { key }, HDEL = { key, 'f' },
  HEXISTS = { key, 'f' }, HGET = { key, 'f' }, HGETALL = { key }, HINCRBY = { key, 'f', '1' }, HKEYS = { key }, HLEN = { key }, HMGET = { key, 'f' }, HSCAN = { key, '0' }, HSET = { key, 'f', 'v' },
  LINDEX = { key, '0' }, LLEN = { key }, LPOS = { key, 'v' }, LMOVE = { other, key, 'RIGHT', 'LEFT' }, LPUSH = { key, 'v' }, LRANGE = { key, '0', '0' },
  LREM = { key, '1', 'v' }, LSET = { key, '0', 'v' }, LTRIM = { key, '0', '0' }, MGET = { key }, MSET = { key, 'v' },
  PEXPIRE = { key, '1' }, PTTL = { key }, RENAME = { key, other }, RPOP = { key, '1' }, RPUSH = { key, 'v' }, SET = { key, 'v' },
  STRLEN = { key }, TIME = {}, TYPE = { key }, XADD = { key, '*', 'f', 'v' }, XDEL = { key, '0-1' }, XRANGE = { key, '-', '+' },
  XTRIM = { key, 'MAXLEN', '1' }, ZADD = { key, '0', 'm' }, ZCARD = { key }, ZRANGE = { key, '0', '0' }, ZREM = { key, 'm' },
  ZCOUNT = { key, '0', '0' }, ZLEXCOUNT = { key, '-', '+' }, ZMSCORE = { key, 'm' }, ZSCORE = { key, 'm' },
}

-- Returns the first command that is not allowed; nil if all are.
local function missing_right()
  for command in string.gmatch(RIGHTS, '%S+') do
    if not redis.acl_check_cmd(command, unpack(ARGUMENTS[command])) then
      return command
    end
  end
end

-- Returns whether the user may call functions. A server without functions refuses the question.
local function may_call_functions()
  local known, allowed = pcall(redis.acl_check_cmd, 'FCALL', 'f', '1', key)
  return known and allowed
end

return { may_call_functions = may_call_functions, missing = missing_right }
