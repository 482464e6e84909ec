-- share: an operator sets or removes a share of groups.
--
-- Purpose   Workers read the shares when they claim objects. set: the share replaces the whole share
--           of its selector. If the priority of a group changes, the group goes to the scores of
--           its new priority, one claim behind the first group there. Groups that wait for a limit
--           have turns again. The call touches no object and no list of names.
--           Before a share is set, `count` makes workers count the objects in hand from now on, and
--           operator/in_hand.lua counts those that are in hand already. So a limit counts all
--           objects in hand from the moment it is set. Repeating a call changes nothing but the time.
-- Keys      KEYS[1] event.shares (hash, read and write)
--           event.groups (sorted set): read and written
--           event.shares.summary (string): read, written or deleted
--           event.shares.used (hash), event.groups.blocked (sorted set): deleted in part or whole
--           event.groups.turns (string), objects.in.hand (sorted set): deleted if no share is left
--           operator.actions (stream), objects.with.events (list): written
-- Arguments prefix
--           name of the operator (at most 1,000 bytes)
--           reason for the action (at most 1,000 bytes, may be '')
--           count | set | remove
--           of set and remove: selector: `PREFIX:*`, where PREFIX has 1 to 8 parts; or `*`
--           of set: the reply to `count`; weight (1 to 100, or `-`); priority (`high`, `normal`,
--           `low`, or `-`); most objects in hand (from 1, or `-`); events per second (above 0, or
--           `-`); burst in events (from 1, or `-`)
-- Replies   {'counting', time since when objects in hand are counted, ms}
--           {'set', 'new' | 'again'}
--           {'removed'}
--           {'not_set'}
--           {'restart'}: objects in hand are not counted since the time that was given
--           {'too_many', number of shares}
--           {'denied', command}
--           {'wrong_type', key, its type}
-- Keeps     I1 to I9: holds and wakes no object; every group stays in event.groups
-- Cost      about 30 commands, one of which reads all shares (at most 1,024), one reads all groups (at
--           most 2,049), and one moves groups (at most 2,049); objects.in.hand has at most the objects
--           of all slots
local TEXT_BYTES_MAX = 200
local step, selector, epoch = ARGV[4], ARGV[5], ARGV[6]
local groups_key, summary_key, turns_key = P .. K.event_groups, P .. K.event_shares_summary, P .. K.event_groups_turns
local used_key, blocked_key, in_hand_key = P .. K.event_shares_used, P .. K.event_groups_blocked, P .. K.objects_in_hand

local no = rare.actions.refused(
  KEYS[1], 'hash', groups_key, 'zset', summary_key, 'string', turns_key, 'string', used_key, 'hash', blocked_key, 'zset', in_hand_key, 'zset'
)
if no then
  return no
end
local epoch_before = rare.shares.epoch_of(redis_call('GET', summary_key))
if step == 'count' then
  if not epoch_before then
    epoch_before = ids.text(rare.time.now_ms())
    redis_call('SET', summary_key, '0 0 ' .. epoch_before)
  end
  return { 'counting', tonumber(epoch_before) }
end

-- Returns the number that says what shares do, and the most parts of a prefix that has a share. Also
-- returns the parts of the shares that set a priority, by prefix, and the lengths of these prefixes in
-- bytes.
local function read_shares()
  local all, mode, most, shares, lengths = redis_call('HGETALL', KEYS[1]), 0, 0, {}, {}
  for at = 1, #all, 2 do
    local prefix, parts = rare.shares.prefix_of(all[at])
    local share = (prefix or all[at] == '*') and rare.shares.parse(all[at + 1])
    if share then
      mode = math.max(mode, (share.in_flight or share.rate) and 2 or 1)
      most = math.max(most, parts or 0)
      if share.class and prefix then
        shares[prefix], lengths[#prefix] = share, true
      end
    end
  end
  return mode, most, shares, lengths
end

-- Returns the whole name of a group, and its prefixes that are as long as a prefix with a share, the
-- shortest first. Others are left out, because each text costs time.
local function prefixes_of(group, lengths)
  local prefixes, at = {}, 0
  for _ = 1, rare.shares.PARTS_MAX do
    at = string.find(group, ':', at + 1, true)
    if not at then
      prefixes[#prefixes + 1] = group
      break
    elseif lengths[at - 1] then
      prefixes[#prefixes + 1] = string.sub(group, 1, at - 1)
    end
  end
  return prefixes
end

-- Lets all groups have turns again that wait for a limit: their passes rise to the lowest of the
-- others. Moves each group whose priority has changed to the scores of its new priority, one claim
-- behind the first of the groups that stay there.
local function move_groups(shares, lengths)
  local found = redis_call('ZRANGE', groups_key, '0', rare.group.LISTS_MAX, 'WITHSCORES')
  local moving, class_of, parked, passes = {}, {}, {}, {}
  -- By class: the lowest pass of the groups that have turns, and of those that wait for a limit.
  local lowest, lowest_parked = {}, {}
  for k = 1, #found, 2 do
    local group, score = found[k], tonumber(found[k + 1])
    local is_parked = score >= rare.shares.PARKED - rare.shares.CLASS
    local pass = is_parked and score - rare.shares.PARKED or score
    local before, _, class = rare.shares.class_of(pass), rare.shares.weigh(prefixes_of(group, lengths), shares)
    if class ~= before and group ~= rare.group.REST then
      moving[#moving + 1], class_of[group] = group, class
    elseif is_parked then
      parked[group], lowest_parked[before] = pass, math.min(lowest_parked[before] or pass, pass)
    else
      lowest[before] = math.min(lowest[before] or pass, pass)
    end
  end
  for group, pass in pairs(parked) do
    local class = rare.shares.class_of(pass)
    local shift = math.max((lowest[class] or lowest_parked[class]) - lowest_parked[class], 0)
    passes[#passes + 1], passes[#passes + 2] = string.format('%.17g', pass + shift), group
  end
  local first = {}
  for class = -1, 1 do
    first[class] = rare.shares.pass_behind(lowest[class] or lowest_parked[class], class)
  end
  for _, group in ipairs(moving) do
    passes[#passes + 1], passes[#passes + 2] = first[class_of[group]], group
  end
  if passes[1] then
    redis_call('ZADD', groups_key, unpack(passes))
  end
end

-- Keeps a new rate from waiting for events that were taken under an older one.
local function cap_used()
  local share, used_text = rare.shares.parse(redis_call('HGET', KEYS[1], selector)), redis_call('HGET', used_key, selector)
  if share and share.rate and used_text then
    local used, now_ms = rare.shares.used_of(used_text), rare.time.now_ms()
    local most = now_ms * 1000 + (share.burst or 1) * 1000000 / share.rate
    redis_call('HSET', used_key, selector, rare.shares.used_text(used, 0, math.min(used.tat, most), now_ms))
  end
end

-- Makes all that follows from the shares agree with them, and wakes a worker that waits for markers.
local function follow()
  local mode, most, shares, lengths = read_shares()
  if mode > 0 then
    redis_call('SET', summary_key, string.format('%d %d %s', mode, most, epoch_before or ids.text(rare.time.now_ms())))
  else
    redis_call('DEL', summary_key, turns_key, used_key, in_hand_key)
  end
  redis_call('DEL', blocked_key)
  move_groups(shares, lengths)
  redis_call('RPUSH', P .. K.objects_with_events, '')
end

local is_set = redis_call('HGET', KEYS[1], selector) ~= false
if step == 'set' then
  if epoch ~= epoch_before then
    return { 'restart' }
  end
  local count = redis_call('HLEN', KEYS[1])
  if not is_set and count >= rare.shares.SHARES_MAX then
    return { 'too_many', count }
  end
  -- Both texts are cut, because a call reads all shares.
  local who, why = rare.text.beginning(rare.actions.who, TEXT_BYTES_MAX), rare.text.beginning(rare.actions.why, TEXT_BYTES_MAX)
  local parts = table.concat({ ARGV[7], ARGV[8], ARGV[9], ARGV[10], ARGV[11], ids.text(rare.time.now_ms()), #who }, ' ')
  redis_call('HSET', KEYS[1], selector, parts .. ' ' .. who .. why)
  cap_used()
  follow()
  rare.actions.note('share-set', selector, '')
  return { 'set', is_set and 'again' or 'new' }
end
if not is_set then
  return { 'not_set' }
end
redis_call('HDEL', KEYS[1], selector)
redis_call('HDEL', used_key, selector)
follow()
rare.actions.note('share-remove', selector, '')
return { 'removed' }
