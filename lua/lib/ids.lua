-- ids: whole numbers from 0 to 2^53 - 1, as text, and the step from one id to the next.
local MAX = 9007199254740991

-- Returns the number, or nil if the text is none. `tonumber` alone takes `nan`, `1e5`, `0x10` and `
-- 7` for numbers.
local function parse(text)
  local id = #text <= 16 and string.find(text, '^%d+$') and tonumber(text)
  return id and id <= MAX and id or nil
end

-- Returns the number as text, in full. Redis would need longer for it, and `%d` alone may be wrong
-- above 2^31.
local function text(number)
  return string.format(number < 2147483648 and '%d' or '%.0f', number)
end

-- Returns the id that is given `count` events after `id`. The ids of a batch are steps from its
-- first one.
local function after(id, count)
  return id + count
end

return { MAX = MAX, parse = parse, text = text, after = after }
