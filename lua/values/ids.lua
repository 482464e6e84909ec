-- ids: whole numbers from 0 to 2^53 - 1 as text, and the step from one id to the next.
local MAX = 9007199254740991

-- Returns the number; nil for any other text. `tonumber` alone would accept `nan`, `1e5` and
-- `0x10`.
local function parse(text)
  local id = #text <= 16 and string.find(text, '^%d+$') and tonumber(text)
  return id and id <= MAX and id or nil
end

-- Returns the number with all its digits. Prints a large number as two parts below 2^31, because
-- `%d` may be wrong above 2^31, and `%.0f` takes four times as long.
local function text(number)
  if number < 100000000 then
    return string.format('%d', number)
  end
  local low = number % 100000000
  return string.format('%d%08d', (number - low) / 100000000, low)
end

-- Returns the id that is `count` events after `id`. The ids of a batch are steps from its first id.
local function after(id, count)
  return id + count
end

return { MAX = MAX, parse = parse, text = text, after = after }
