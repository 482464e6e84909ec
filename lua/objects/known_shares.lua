-- known_shares (passing): the group of an object, and the weight and the class of a group. The
-- group of an object is the longest prefix that has a share. If there is none, its name has the
-- first parts of the object.

local DEPTH = call.bounds.group_depth
-- The most parts of a prefix that has a share; 0 if no prefix has one.
local PARTS = math.min(call.shares and tonumber(string.match(call.shares, '^%d (%d+)')) or 0, rare.shares.PARTS_MAX)
-- The share of all objects; nil if there is none.
local all = call.limited and rare.shares.parse(redis_call('HGET', P .. K.event_shares, '*') or nil)
-- The most names whose shares one command reads.
local NAMES_MAX = 64
-- By prefix: the parts of its share; false if it has none. By object: its group, if limits have asked
-- for it. By group: its prefixes, and those that have a share.
local shares, group_by_object, prefixes_by_group, owners_by_group = {}, {}, {}, {}

-- Returns the prefixes of a group that may have a share.
local function prefixes_of(group)
  local prefixes = prefixes_by_group[group]
  if not prefixes then
    prefixes = rare.shares.prefixes_of(group, PARTS)
    prefixes_by_group[group] = prefixes
  end
  return prefixes
end

-- Reads the shares of the names from `last` down, if the call has not read them yet. Returns the
-- number of prefixes that were new.
local function learn(names, last)
  local new, selectors = {}, {}
  for k = last, math.max(last - NAMES_MAX + 1, 1), -1 do
    for _, prefix in ipairs(rare.shares.prefixes_of(names[k], PARTS)) do
      if shares[prefix] == nil then
        shares[prefix], new[#new + 1], selectors[#selectors + 1] = false, prefix, rare.shares.selector_of(prefix)
      end
    end
  end
  if new[1] then
    local found = redis_try('HMGET', P .. K.event_shares, unpack(selectors))
    for n, prefix in ipairs(new) do
      shares[prefix] = not found.err and found[n] and rare.shares.parse(found[n]) or false
    end
  end
  return #new
end

-- Reads the shares of these groups in few steps.
local function learn_all(groups)
  for last = PARTS > 0 and #groups or 0, 1, -NAMES_MAX do
    learn(groups, last)
  end
end

-- Returns the group of an object; the beginning of its name on which the group depends; and the
-- number of prefixes whose shares were read. `names`, `k`: the object is the k-th of these names, and
-- the call is about to ask for those before it.
local function group_of(object, names, k)
  if PARTS == 0 then
    local group = DEPTH > 0 and rare.group.of(object, DEPTH) or rare.group.REST
    return rare.group.listed(group), group, 0
  end
  local prefixes, new = rare.shares.prefixes_of(object, math.max(PARTS, DEPTH)), 0
  local last = math.min(#prefixes, PARTS)
  if shares[prefixes[last]] == nil then
    new = learn(names or { object }, k or 1)
  end
  for p = last, 1, -1 do
    if shares[prefixes[p]] then
      return prefixes[p], prefixes[#prefixes], new
    end
  end
  return DEPTH == 0 and rare.group.REST or rare.group.listed(prefixes[math.min(DEPTH, #prefixes)]), prefixes[#prefixes], new
end

-- Returns the group of an object that the call has claimed or may claim.
local function known_group_of(object)
  local group = group_by_object[object]
  if not group then
    group = group_of(object)
    group_by_object[object] = group
  end
  return group
end

-- Returns the prefixes of a group that have a share, `*` for the share of all objects. The shares of
-- the group have been read, by `learn_all` or `group_of`; REST has none.
local function owners_of(group)
  local owners = owners_by_group[group]
  if not owners then
    local prefixes = prefixes_of(group)
    owners = { all and '*' or nil }
    for _, prefix in ipairs(prefixes) do
      owners[#owners + 1] = shares[prefix] and prefix or nil
    end
    owners_by_group[group] = owners
  end
  return owners
end

-- Returns the share of a prefix of `owners_of`.
local function share_of(prefix)
  return prefix == '*' and all or shares[prefix]
end

-- Returns whether the group has a share of its own.
local function has_own(group)
  return shares[group] and true or false
end

-- Returns the weight and the class of a group whose shares have been read.
local function weigh(group)
  if PARTS == 0 then
    return 1, 0
  end
  return rare.shares.weigh(prefixes_of(group), shares)
end

return {
  any = PARTS > 0, makes_groups = DEPTH > 0 or PARTS > 0 or call.limited, learn_all = learn_all, group_of = group_of, known_group_of = known_group_of,
  owners_of = owners_of, share_of = share_of, has_own = has_own, weigh = weigh,
}
