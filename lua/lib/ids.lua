-- ids: whole numbers from 0 to 2^53 - 1, as text.
local ID_MAX = 9007199254740991

-- The number, or nil where the text is none. `tonumber` alone takes `nan`, `1e5`, `0x10` and ` 7` for numbers.
local function id_of(text)
  local id = #text <= 16 and string.find(text, '^%d+$') and tonumber(text)
  return id and id <= ID_MAX and id or nil
end
