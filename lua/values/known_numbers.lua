-- known_numbers: the numbers of texts that come again and again, such as the bounds of a call.

-- The most texts that are remembered.
local KNOWN_MAX = 1000
local known = 0

local by_text = setmetatable({}, { __index = function(numbers, text)
  local number = tonumber(text)
  if known < KNOWN_MAX then
    known = known + 1
    rawset(numbers, text, number)
  end
  return number
end })

return { by_text = by_text }
