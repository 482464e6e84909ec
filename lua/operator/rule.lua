-- rule: an operator sets a pause or a block, or lifts one.
--
-- Purpose   set: what the selector means is claimed no more, from the next call of any worker on. A
--           rule that is set already gets who, why and end of this call; one that is being lifted
--           is in force again, and its waking will begin anew. lift: the rule holds nothing any
--           more; workers wake what it has held, and then it goes. Nothing else is touched here,
--           however many they are. Repeating a call changes nothing but the time.
-- Keys      KEYS[1] event.rules (hash, read and write); operator.actions (stream, written);
--           objects.with.events (list, written)
-- Arguments prefix; who; why; set | lift; pause | block; selector; ms after which the rule lifts
--           itself (0: never); rules there may be
-- Replies   {'set', 'new' | 'again' | 'revived'} | {'lifted'} | {'lifting'}: it is lifted already,
--           and its objects are being woken
--           | {'not_set'} | {'too_many', how many rules there are}
--           | {'denied', command} | {'wrong_type', key, its type}
-- Keeps     I1 to I7: it holds nothing and wakes nothing
-- Cost      about 20 commands, one of which reads all rules
-- Uses: actions.note actions.refused actions.who actions.why rules.is_in_force rules.next_of
-- Uses: rules.parse rules.text rules.write_next time.now_ms
local step, kind, selector, for_ms, rules_max = ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local field = kind .. ' ' .. selector

local no = M.actions.refused(KEYS[1], 'hash')
if no then
  return no
end
local now_ms = M.time.now_ms()
local value = call('HGET', KEYS[1], field)
local rule = value and M.rules.parse(value)

local function write(changed)
  call('HSET', KEYS[1], field, M.rules.text(changed))
  M.rules.write_next(M.rules.next_of(call('HGETALL', KEYS[1])))
end

if step == 'set' then
  -- One of the fields is no rule.
  local others = call('HLEN', KEYS[1]) - 1
  if not value and others >= rules_max then
    return { 'too_many', others }
  end
  local ends = for_ms > 0 and now_ms + for_ms or 0
  write({ set = string.format('%.0f', now_ms), ends = ends, lifted = false, who = M.actions.who, cursor = '', why = M.actions.why })
  M.actions.note(kind, selector, '')
  return { 'set', not rule and 'new' or M.rules.is_in_force(rule.ends, rule.lifted, now_ms) and 'again' or 'revived' }
end

if not value then
  return { 'not_set' }
elseif rule and rule.lifted then
  return { 'lifting' }
end
-- What nobody can read holds nothing, and is lifted by being replaced.
rule = rule or { set = '0', ends = 0, who = '', cursor = '', why = '' }
rule.lifted = true
write(rule)
call('RPUSH', P .. K.objects_with_events, '')
M.actions.note(kind == 'pause' and 'resume' or 'unblock', selector, '')
return { 'lifted' }
