-- indexes: checks of the keys that all objects share.

-- The fields of seriatim.meta, and the forms of those that are no whole numbers below 2^53.
local META_FIELDS = { 'schema', 'partitions', 'event.log.keep', 'names.next', 'names.cursor', 'names.indexed', 'clock', 'clock.step',
  'clock.ahead', 'clock.gained', 'groups.lost', 'cursors.secret' }
local META_FORMS = { ['names.cursor'] = '^%d+$', ['clock.step'] = '^%d+ %a+ %d+$', ['groups.lost'] = '^%(%S+ %-%d+$',
  ['cursors.secret'] = '^' .. string.rep('%x', 64) .. '$' }

-- Returns the checks. `find`, `expect`, `shared`, `whole`: functions of check.lua.
local function checks_with(find, expect, shared, whole)
  -- Checks that every field of event.rules except `next` is a rule. Checks that `next` has the time
  -- at which workers must next wake objects of a rule.
  local function check_rules()
    local all = redis_call('HGETALL', P .. K.event_rules)
    local stored
    for at = 1, #all, 2 do
      if all[at] == 'next' then
        stored = all[at + 1]
      elseif not rare.rules.is_rule(all[at], all[at + 1]) then
        find('layout', K.event_rules, ' has a field ', all[at], ' that is no rule')
      end
    end
    local due = rare.rules.next_text(rare.rules.next_of(all))
    if stored ~= due then
      find('layout', K.event_rules, ' says that rules are to be looked at next at ', stored or 'no time', ', it should be ', due or 'no time')
    end
  end

  -- Returns whether a member of a limit is a number of events or markers, or sets none.
  local function is_most(most)
    return most == nil or most == cjson.null or type(most) == 'number' and most >= 0 and most % 1 == 0
  end

  -- Returns whether the value is a limit.
  local function is_limit(value)
    -- If the value is no JSON, `limit` is the error, a text.
    local _, limit = pcall(cjson.decode, value)
    return type(limit) == 'table' and is_most(limit.queued_max) and is_most(limit.markers_max) and type(limit.set_ms) == 'number'
      and type(limit.actor) == 'string' and type(limit.reason) == 'string'
  end

  -- Checks that every field of event.limits is a limit. Emitters ignore other fields.
  local function check_limits()
    local all = redis_call('HGETALL', P .. K.event_limits)
    for at = 1, #all, 2 do
      if not is_limit(all[at + 1]) then
        find('layout', K.event_limits, ' has a field ', all[at], ' that is no limit: set or remove that limit')
      end
    end
  end

  -- Checks that every field of event.shares is a share, and that event.shares.summary tells what they do
  -- and the most parts of their prefixes. With the hint `counts`, also looks at the first
  -- 1,000 objects that count as in hand.
  local function check_shares(hint)
    local all, mode, most = shared(K.event_shares, 'hash') and redis_call('HGETALL', P .. K.event_shares) or {}, 0, 0
    local priorities = { ['-'] = true }
    for name in pairs(rare.shares.CLASSES) do priorities[name] = true end
    for at = 1, #all, 2 do
      local weight, priority, who_bytes, texts_at = string.match(all[at + 1], '^(%S+) (%S+) %S+ %S+ %S+ %d+ (%d+) ()')
      local prefix, parts = rare.shares.prefix_of(all[at])
      local share = weight and (prefix or all[at] == '*') and rare.shares.parse(all[at + 1])
      local has_weight = weight == '-' or (whole(weight) or 0) >= 1 and whole(weight) <= 100
      if not share or not has_weight or not priorities[priority] or tonumber(who_bytes) > #all[at + 1] - texts_at + 1 then
        find('layout', K.event_shares, ' has a field ', all[at], ' that is no share: delete that field, and set the share again')
      end
      if share then mode, most = math.max(mode, (share.in_flight or share.rate) and 2 or 1), math.max(most, parts or 0) end
    end
    local stored = shared(K.event_shares_summary, 'string') and redis_call('GET', P .. K.event_shares_summary) or nil
    local due = string.format('%d %d', mode, most)
    if (stored and rare.shares.epoch_of(stored) and string.match(stored, '^%d %d+') or '0 0') ~= due then
      find('layout', K.event_shares_summary, ' is ', stored or 'absent', ', it should begin with ', due, ': set any share')
    end
    -- The check of all keys looks at each member, as an object.
    local members = hint == 'counts' and shared(K.objects_in_hand, 'zset') and redis_call('ZRANGE', P .. K.objects_in_hand, '0', '999') or {}
    for _, member in ipairs(members) do
      local owner = redis_call('MGET', P .. string.sub(member, 1, -2) .. K.event_worker)[1]
      if not owner or owner == 'held' then
        find('layout', K.objects_in_hand, ' has a member ', member, ', but no slot owns this object: `seriatim repair` removes it')
      end
    end
  end

  -- Checks that the members of event.marks are marks. Looks at the first 1,000.
  local function check_marks()
    for _, member in ipairs(redis_call('ZRANGE', P .. K.event_marks, '0', '999')) do
      if member ~= rare.marks.MET and not rare.marks.is_mark('\0t' .. member) then
        find('layout', K.event_marks, ' has a member ', member, ' that is no mark: remove that member')
      end
    end
  end

  -- Checks that workers take names from the list of a group.
  local function check_group(subject)
    local key = rare.group.key(subject.name)
    if not expect(key, 'list') then return end
    local is_sound = shared(K.event_groups, 'zset') or shared(K.event_groups, 'none')
    if is_sound and not (shared(K.event_groups, 'zset') and redis_call('ZSCORE', P .. K.event_groups, subject.name)) then
      find('layout', 'has ', redis_call('LLEN', key), ' names that are grouped, but is not in ', K.event_groups, ': no worker takes these names; add the group to ',
        K.event_groups, ' with score 0')
    end
  end

  -- Checks that event.groups.waiting is the number of names in the lists of all groups. If there are
  -- more groups than workers make, the names are not counted. If event.groups.times is lost, some of the
  -- names may be marks.
  local function check_groups()
    local groups = shared(K.event_groups, 'zset') and redis_call('ZRANGE', P .. K.event_groups, '0', rare.group.LISTS_MAX + 1) or {}
    if #groups > rare.group.LISTS_MAX + 1 then
      return find('layout', K.event_groups, ' has more than ', rare.group.LISTS_MAX + 1, ' groups')
    end
    local stuck = groups[1] and rare.shares.without_turns() or 0
    if stuck > 0 then
      find('layout', K.event_groups, ' has ', stuck, ' groups with a score that no group can have, so they have no turns: `seriatim repair` mends it')
    end
    -- Marks in the lists do not count.
    local has_times, count = shared(K.event_groups_times, 'hash'), 0
    for _, group in ipairs(groups) do
      local names_waiting = redis_try('LLEN', rare.group.key(group))
      local times = has_times and rare.group.times_of(redis_call('HGET', P .. K.event_groups_times, group))
      -- If the list was lost, its marks may still be counted.
      count = count + math.max((type(names_waiting) == 'number' and names_waiting or 0) - (times and times.marks or 0), 0)
    end
    local stored = shared(K.event_groups_waiting, 'string') and redis_call('GET', P .. K.event_groups_waiting) or '0'
    local least = count - rare.group.unknown_marks(has_times, #groups)
    if not whole(stored) or whole(stored) > count or whole(stored) < least then
      find('layout', K.event_groups_waiting, ' is ', stored, ', but the lists of all groups have ', count, ' names: set it to ', count)
    end
  end

  -- Checks the fields of seriatim.meta of which scripts read values. Workers write each of them again.
  local function check_meta()
    local values = redis_call('HMGET', P .. K.meta, unpack(META_FIELDS))
    for at, field in ipairs(META_FIELDS) do
      local value, form = values[at], META_FORMS[field]
      if value and not (form and string.match(value, form) or not form and whole(value)) then
        find('layout', K.meta, ' has a field ', field, ' that is not as workers write it: delete that field')
      end
    end
  end

  return { meta = check_meta, rules = check_rules, limits = check_limits, shares = check_shares, marks = check_marks, group = check_group, groups = check_groups }
end

return { with = checks_with }
