-- text: texts for people, cut to a length.

-- Returns the text, or its first `bytes_max` bytes and up to three less, so that no letter of UTF-8
-- is cut.
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
