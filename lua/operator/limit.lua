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
--           of set: most queued events of an object, and most markers (from 1; `null`: any
--           number); most limits there may be
-- Replies   {'set', 'new' | 'again'}
--           {'removed'}
--           {'not_set'}
--           {'too_many', number of limits}
--           {'denied', command}
--           {'wrong_type', key, its type}
-- Keeps     I1 to I9: writes only these two keys
-- Cost      about 20 commands
local TEXT_BYTES_MAX = 200
local step, selector, queued_max, markers_max, limits_max = ARGV[4], ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])

local no = rare.actions.refused(KEYS[1], 'hash')
if no then
  return no
end
local is_set = redis_call('HGET', KEYS[1], selector) ~= false
if step == 'set' then
  local limits = redis_call('HLEN', KEYS[1])
  if not is_set and limits >= limits_max then
    return { 'too_many', limits }
  end
  -- Both texts are cut, because emitters read all limits.
  local who, why = rare.text.beginning(rare.actions.who, TEXT_BYTES_MAX), rare.text.beginning(rare.actions.why, TEXT_BYTES_MAX)
  -- The numbers are printed as they came, because cjson has only 14 digits.
  local form = '{"queued_max":%s,"markers_max":%s,"set_ms":%s,"actor":%s,"reason":%s}'
  redis_call('HSET', KEYS[1], selector, string.format(form, queued_max, markers_max, ids.text(rare.time.now_ms()), cjson.encode(who), cjson.encode(why)))
  rare.actions.note('limit-set', selector, '')
  return { 'set', is_set and 'again' or 'new' }
end
if not is_set then
  return { 'not_set' }
end
redis_call('HDEL', KEYS[1], selector)
rare.actions.note('limit-remove', selector, '')
return { 'removed' }
