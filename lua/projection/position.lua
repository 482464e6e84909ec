-- position: a projection's place in the event log and its state, read and written together by the
-- one process that runs it.
--
-- Purpose   open: takes the name, where nobody has it, and reads. save: writes both, and keeps the
--           name. keep: keeps the name. close: gives it back. Whoever has lost the name writes
--           nothing.
-- Keys      KEYS[1] event.projections (hash, read and write); event.projection.NAME (string, read
--           and write: the state), event.projection.NAME.lease (string with a time to live)
-- Arguments prefix; open | save | keep | close; name; token; ms for which the name is kept; for
--           save: position, state
-- Replies   {'ok', position or '', state or ''} | {'ok'} | {'lost'}: another process has the name,
--           or had it; at open: has it, for as long as the caller would have it, at most
-- Keeps     none is touched
-- Cost      about 4 commands
local step, name, token, lease_ms = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local state = P .. K.PROJECTION .. name .. K.event_projection
local lease = P .. K.PROJECTION .. name .. K.event_projection_lease

local holder = call('GET', lease)
if step == 'open' then
  if holder and holder ~= token then
    -- Redis keeps the end of a lease, not its length: behind a step of the clock it may end an hour
    -- late.
    if call('PTTL', lease) > tonumber(lease_ms) then
      call('PEXPIRE', lease, lease_ms)
    end
    return { 'lost' }
  end
  local position, saved = call('HGET', KEYS[1], name), call('GET', state)
  call('SET', lease, token, 'PX', lease_ms)
  return { 'ok', position or '', saved or '' }
elseif holder ~= token then
  return { 'lost' }
elseif step == 'close' then
  call('DEL', lease)
  return { 'ok' }
elseif step == 'save' then
  call('HSET', KEYS[1], name, ARGV[6])
  call('SET', state, ARGV[7])
end
call('PEXPIRE', lease, lease_ms)
return { 'ok' }
