-- position: the place of a projection in the event log, and its state.
--
-- Purpose   Reads and writes place and state together, for the one process that runs the
--           projection.
--             open   takes the name if no process has it, and reads
--             save   writes both, and extends the lease of the name
--             keep   extends the lease
--             close  deletes the lease
--           A process without the name writes nothing.
-- Keys      KEYS[1] event.projections (hash, read and write)
--           event.projection.NAME (string, read and write): the state
--           event.projection.NAME.lease (string, read and write)
-- Arguments prefix
--           open | save | keep | close
--           name
--           token
--           lease (ms)
--           for save: position; state
-- Replies   {'ok', position or '', state or ''} for open
--           {'ok'}
--           {'lost'}: another process has the name, or had it. For `open`: another process has the
--           name, and keeps it at most for the length of the caller's lease unless it extends its
--           lease
-- Keeps     writes only these three keys
-- Cost      about 4 commands
local step, name, token, lease_ms = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local state = P .. K.PROJECTION .. name .. K.event_projection
local lease = P .. K.PROJECTION .. name .. K.event_projection_lease

local holder = redis_call('GET', lease)
if step == 'open' then
  if holder and holder ~= token then
    rare.lease.cut(lease, tonumber(lease_ms))
    return { 'lost' }
  end
  local position, saved = redis_call('HGET', KEYS[1], name), redis_call('GET', state)
  redis_call('SET', lease, token, 'PX', lease_ms)
  return { 'ok', position or '', saved or '' }
elseif holder ~= token then
  return { 'lost' }
elseif step == 'close' then
  redis_call('DEL', lease)
  return { 'ok' }
elseif step == 'save' then
  redis_call('HSET', KEYS[1], name, ARGV[6])
  redis_call('SET', state, ARGV[7])
end
redis_call('PEXPIRE', lease, lease_ms)
return { 'ok' }
