-- share: the shares that operators have set, and the weight and the priority of a group.
--
--   event.shares (hash)            by selector, `PREFIX:*`: `WEIGHT PRIORITY IN_FLIGHT RATE BURST SET
--                                  WHO_BYTES WHO WHY`, without a space between WHO and WHY. `-`
--                                  stands for a part that is not set
--   event.shares.summary (string)  `MODE PARTS`: MODE is 1, and PARTS the most parts of a prefix that
--                                  has a share. Absent if there is no share
-- A share is for the objects whose names begin with `PREFIX:`, and for the object PREFIX itself.

-- The most shares. The most parts of a prefix.
local SHARES_MAX, PARTS_MAX = 1024, 8
-- Each priority has a range of scores in event.groups. CLASS is the size of the range: no group has
-- so many claims while it waits. The steps between two scores are at most 1/4096, so that a claim of
-- a group with weight 100 still counts.
local CLASS = 1099511627776
local CLASSES = { high = -1, normal = 0, low = 1 }
local NAMES = { [-1] = 'high', [0] = 'normal', [1] = 'low' }

-- Returns the first parts of a name, from one part up to `most` parts. If the whole name has no more
-- parts, it is the last of them.
local function prefixes_of(name, most)
  local prefixes, at = {}, 0
  for p = 1, most do
    at = string.find(name, ':', at + 1, true)
    prefixes[p] = at and string.sub(name, 1, at - 1) or name
    if not at then
      break
    end
  end
  return prefixes
end

-- Returns the selector of the share with this prefix.
local function selector_of(prefix)
  return prefix .. ':*'
end

-- Returns the prefix of a selector, and the number of its parts; nil if no share can have this
-- selector.
local function prefix_of(selector)
  local prefix = string.match(selector, '^(.+):%*$')
  local _, colons = string.gsub(prefix or '', ':', '')
  if prefix and colons < PARTS_MAX then
    return prefix, colons + 1
  end
end

-- Returns the parts of the value of a share; nil if it is none. A part that is not set is nil.
local function parse(text)
  local weight, priority, in_flight, rate, burst, set_ms = string.match(text or '', '^(%S+) (%S+) (%S+) (%S+) (%S+) (%d+) %d+ ')
  if not weight then
    return nil
  end
  return {
    weight = tonumber(weight), class = CLASSES[priority], in_flight = tonumber(in_flight), rate = tonumber(rate), burst = tonumber(burst),
    set_ms = tonumber(set_ms),
  }
end

-- Returns the class of a score: -1 for high, 0 for normal, 1 for low.
local function class_of(score)
  return score < 0 and -1 or score < CLASS and 0 or 1
end

-- Returns the weight and the class of a group. They come from the longest prefix with a share that
-- sets them. `shares`: by prefix, the parts of its share, if there is one.
local function weigh(prefixes, shares)
  local weight, class = nil, nil
  for p = #prefixes, 1, -1 do
    local share = shares[prefixes[p]]
    weight, class = weight or share and share.weight, class or share and share.class
  end
  return weight or 1, class or 0
end

-- Returns the pass with which new groups of a class begin, as text: one above the lowest pass. With a
-- lower one, they would go before all others for as many claims as these have had. With the lowest
-- pass, groups that keep coming would go before those that have had a claim, for ever.
local function first_pass(class)
  local from, to = class == -1 and '-inf' or class * CLASS, class == 1 and 'inf' or string.format('(%.0f', (class + 1) * CLASS)
  local lowest = call('ZRANGE', P .. K.event_groups, from, to, 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')[2]
  return string.format('%.17g', lowest and lowest + 1 or class * CLASS)
end

return {
  SHARES_MAX = SHARES_MAX, PARTS_MAX = PARTS_MAX, CLASS = CLASS, NAMES = NAMES, prefixes_of = prefixes_of, selector_of = selector_of,
  prefix_of = prefix_of, parse = parse, class_of = class_of, weigh = weigh, first_pass = first_pass,
}
