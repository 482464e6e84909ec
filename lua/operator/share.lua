-- share: an operator sets or removes a share of groups.
--
-- Purpose   Workers read the shares when groups take turns. set: the share replaces the whole share
--           of its selector. If the priority of a group changes, the group goes to the scores of
--           its new priority, one claim behind the first group there. The call touches no object
--           and no list of names. Repeating a call changes nothing but the time.
-- Keys      KEYS[1] event.shares (hash, read and write)
--           event.groups (sorted set): read and written
--           event.shares.summary (string): written or deleted
--           event.groups.turns (string): deleted if no share is left
--           operator.actions (stream), objects.with.events (list): written
-- Arguments prefix
--           name of the operator (at most 1,000 bytes)
--           reason for the action (at most 1,000 bytes, may be '')
--           set | remove
--           selector: `PREFIX:*`, where PREFIX has 1 to 8 parts
--           of set: weight (1 to 100, or `-`); priority (`high`, `normal`, `low`, or `-`)
-- Replies   {'set', 'new' | 'again'}
--           {'removed'}
--           {'not_set'}
--           {'too_many', number of shares}
--           {'denied', command}
--           {'wrong_type', key, its type}
-- Keeps     I1 to I9: holds and wakes no object; every group stays in event.groups
-- Cost      about 30 commands: one reads all shares (at most 1,024), one reads all groups (at most
--           2,049), and up to four move groups
-- Uses: actions.note actions.refused actions.who actions.why group.LISTS_MAX group.REST ids.text
-- Uses: share.SHARES_MAX share.class_of share.first_pass share.parse share.prefix_of
-- Uses: share.prefixes_of share.weigh text.beginning time.now_ms
local TEXT_BYTES_MAX = 200
local step, selector, weight, priority = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local groups_key, summary_key, turns_key = P .. K.event_groups, P .. K.event_shares_summary, P .. K.event_groups_turns

local no = M.actions.refused(KEYS[1], 'hash', groups_key, 'zset', summary_key, 'string', turns_key, 'string')
if no then
  return no
end
local is_set = call('HGET', KEYS[1], selector) ~= false

-- Returns the parts of all shares by prefix, and the most parts of a prefix.
local function read_shares()
  local all, shares, most = call('HGETALL', KEYS[1]), {}, 0
  for at = 1, #all, 2 do
    local prefix, parts = M.share.prefix_of(all[at])
    local share = prefix and M.share.parse(all[at + 1])
    if share then
      shares[prefix], most = share, math.max(most, parts)
    end
  end
  return shares, most
end

-- Moves each group whose priority has changed to the scores of its new priority. All leave first, so
-- that none of them is the lowest of a priority that it leaves.
local function move_groups(shares, most)
  local found = call('ZRANGE', groups_key, '0', M.group.LISTS_MAX, 'WITHSCORES')
  local leaving, of_class = {}, { [-1] = {}, [0] = {}, [1] = {} }
  for k = 1, #found, 2 do
    local group = found[k]
    if group ~= M.group.REST then
      local _, class = M.share.weigh(M.share.prefixes_of(group, most), shares)
      if class ~= M.share.class_of(tonumber(found[k + 1])) then
        leaving[#leaving + 1], of_class[class][#of_class[class] + 1] = group, group
      end
    end
  end
  if not leaving[1] then
    return
  end
  call('ZREM', groups_key, unpack(leaving))
  for class = -1, 1 do
    local passes = {}
    local first = of_class[class][1] and M.share.first_pass(class)
    for _, group in ipairs(of_class[class]) do
      passes[#passes + 1], passes[#passes + 2] = first, group
    end
    if first then
      call('ZADD', groups_key, unpack(passes))
    end
  end
end

-- Makes all that follows from the shares agree with them, and wakes a worker that waits for markers.
local function follow()
  local shares, most = read_shares()
  if most > 0 then
    call('SET', summary_key, string.format('1 %d', most))
  else
    call('DEL', summary_key, turns_key)
  end
  move_groups(shares, most)
  call('RPUSH', P .. K.objects_with_events, '')
end

if step == 'set' then
  local count = call('HLEN', KEYS[1])
  if not is_set and count >= M.share.SHARES_MAX then
    return { 'too_many', count }
  end
  -- Both texts are cut, because a call reads all shares.
  local who, why = M.text.beginning(M.actions.who, TEXT_BYTES_MAX), M.text.beginning(M.actions.why, TEXT_BYTES_MAX)
  local parts = string.format('%s %s - - - %s %d ', weight, priority, M.ids.text(M.time.now_ms()), #who)
  call('HSET', KEYS[1], selector, parts .. who .. why)
  follow()
  M.actions.note('share-set', selector, '')
  return { 'set', is_set and 'again' or 'new' }
end
if not is_set then
  return { 'not_set' }
end
call('HDEL', KEYS[1], selector)
follow()
M.actions.note('share-remove', selector, '')
return { 'removed' }
