-- limit: an operator sets or removes a limit of the queues.
--
-- Purpose   Emitters read the limits, and refuse emits that exceed them. The call touches no
--           object. Repeating a call changes nothing but the time.
-- Keys      KEYS[1] event.limits (hash, read and write)
--           operator.actions (stream): written
-- Arguments prefix
--           name of the operator (at most 1,000 bytes)
--           reason for the action (at most 1,000 bytes, may be '')
--           set | remove
--           selector
--           of set: most queued events of an object (0: any number); most markers (0: any number);
--           most limits there may be
-- Replies   {'set', 'new' | 'again'}
--           {'removed'}
--           {'not_set'}
--           {'too_many', number of limits}
--           {'denied', command}
--           {'wrong_type', key, its type}
-- Keeps     I1 to I9: writes only these two keys
-- Cost      about 20 commands
-- Uses: actions.note actions.refused actions.who actions.why ids.text text.beginning time.now_ms
local TEXT_BYTES_MAX = 200
local step, selector, queued_max, markers_max, limits_max = ARGV[4], ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])

local no = M.actions.refused(KEYS[1], 'hash')
if no then
  return no
end
local is_set = call('HGET', KEYS[1], selector) ~= false
if step == 'set' then
  local limits = call('HLEN', KEYS[1])
  if not is_set and limits >= limits_max then
    return { 'too_many', limits }
  end
  -- Both texts are cut, because emitters read all limits.
  local who, why = M.text.beginning(M.actions.who, TEXT_BYTES_MAX), M.text.beginning(M.actions.why, TEXT_BYTES_MAX)
  local numbers = string.format('%s %s %s %d ', queued_max, markers_max, M.ids.text(M.time.now_ms()), #who)
  call('HSET', KEYS[1], selector, numbers .. who .. why)
  M.actions.note('limit-set', selector, '')
  return { 'set', is_set and 'again' or 'new' }
end
if not is_set then
  return { 'not_set' }
end
call('HDEL', KEYS[1], selector)
M.actions.note('limit-remove', selector, '')
return { 'removed' }
