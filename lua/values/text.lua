-- text: cuts texts for people.

-- Returns the text, or at most its first `bytes_max` bytes. A cut does not split a letter of UTF-8,
-- so up to 3 bytes fewer remain; up to 4 if the text is not UTF-8.
local function beginning(text, bytes_max)
  if #text <= bytes_max then
    return text
  end
  local bytes = bytes_max
  while bytes > bytes_max - 4 and string.find(text, '^[\128-\191]', bytes + 1) do
    bytes = bytes - 1
  end
  return string.sub(text, 1, bytes)
end

return { beginning = beginning }
