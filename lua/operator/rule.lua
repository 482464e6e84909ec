-- rule: an operator sets a pause or a block, or lifts one.
--
-- Purpose   set: workers claim no more objects of the selector, from the next call of any worker
--           on. If the rule is in force already, it gets the operator, the reason and the end of
--           this call. If the rule is being lifted, it is in force again, and a later lift wakes
--           its objects from the first one on. lift: the rule no longer holds any object. Workers
--           wake its objects, and then delete the rule. The call touches no object, so it takes no
--           longer with many objects. Repeating a call changes nothing but the time.
-- Keys      KEYS[1] event.rules (hash, read and write)
--           operator.actions (stream), objects.with.events (list): written
-- Arguments prefix
--           name of the operator (at most 1,000 bytes)
--           reason for the action (at most 1,000 bytes, may be '')
--           set | lift
--           pause | block
--           selector
--           time after which the rule lifts itself (ms; 0: never)
--           most rules there may be
-- Replies   {'set', 'new' | 'again' | 'revived'}: there was no rule; it was in force; it was lifted
--           {'lifted'}
--           {'lifting'}: the rule is lifted already, and its objects are being woken
--           {'not_set'}
--           {'too_many', number of rules}
--           {'denied', command}
--           {'wrong_type', key, its type}
-- Keeps     I1 to I7: holds and wakes no object
-- Cost      about 20 commands, one of which reads all rules
local step, kind, selector, for_ms, rules_max = ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local field = rare.rules.field(kind, selector)

local no = rare.actions.refused(KEYS[1], 'hash')
if no then
  return no
end
local now_ms = rare.time.now_ms()
local value = redis_call('HGET', KEYS[1], field)
local rule = value and rare.rules.parse(value)

-- Writes the rule, and the time at which workers must next wake objects of a rule.
local function write(changed)
  redis_call('HSET', KEYS[1], field, rare.rules.text(changed))
  rare.rules.write_next(rare.rules.next_of(redis_call('HGETALL', KEYS[1])))
end

if step == 'set' then
  -- The field `next` is no rule, so it does not count.
  local others = redis_call('HLEN', KEYS[1]) - 1
  if not value and others >= rules_max then
    return { 'too_many', others }
  end
  local ends = for_ms > 0 and now_ms + for_ms or 0
  write({ set = ids.text(now_ms), ends = ends, lifted = false, who = rare.actions.who, cursor = '', why = rare.actions.why })
  rare.actions.note(kind, selector, '')
  return { 'set', not rule and 'new' or rare.rules.is_in_force(rule.ends, rule.lifted, now_ms) and 'again' or 'revived' }
end

if not value then
  return { 'not_set' }
elseif rule and rule.lifted then
  return { 'lifting' }
end
-- An invalid value holds no object. Lifting replaces it by a lifted rule.
rule = rule or { set = '0', ends = 0, who = '', cursor = '', why = '' }
rule.lifted = true
write(rule)
redis_call('RPUSH', P .. K.objects_with_events, '')
rare.actions.note(kind == 'pause' and 'resume' or 'unblock', selector, '')
return { 'lifted' }
