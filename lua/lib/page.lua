-- page: rows of a stream, as many as asked for or as fit into the bytes of a page.

-- A page ends behind the row with which it has so many bytes.
local PAGE_BYTES_MAX = 1048576
-- Sizes are known only after reading, so that few rows are read at a time.
local ROWS_PER_READ = 4

-- Calls `add` for the rows of the stream in the order of `command`, XRANGE or XREVRANGE, until
-- there are `count` or `add` returns true. Returns 1 if the page ended before because of its bytes,
-- else 0.
local function each_row(command, key, from, to, count, add)
  local want, longest, bytes, seen = 1, 1, 0, 0
  repeat
    local rows = call(command, key, from, to, 'COUNT', want)
    for _, entry in ipairs(rows) do
      local size = 0
      for _, text in ipairs(entry[2]) do
        size = size + #text
      end
      seen, bytes, longest = seen + 1, bytes + size, math.max(longest, size)
      if add(entry) then
        return 0
      end
      from = '(' .. entry[1]
    end
    if #rows < want or seen >= count then
      return 0
    end
    want = math.min(count - seen, ROWS_PER_READ, math.max(math.floor((PAGE_BYTES_MAX - bytes) / longest), 1))
  until bytes >= PAGE_BYTES_MAX
  return 1
end

return { each_row = each_row }
