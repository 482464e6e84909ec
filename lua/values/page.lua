-- page: rows of a stream, up to a number of rows and of bytes.

-- The bytes after which a page ends. The row that reaches this number is the last row of the page.
local PAGE_BYTES_MAX = 1048576
-- The most rows in one read. The number is small, because the size of a row is known only after the
-- read: a row of 1 MiB takes Redis about 1.5 ms. After the bytes of FEW_BYTES a read has one row.
local ROWS_PER_READ = 2
local FEW_BYTES = PAGE_BYTES_MAX / 4

-- Calls `add` for each row of the stream, in the order of `command` (XRANGE or XREVRANGE). Ends
-- after `count` rows, after the bytes of a page, or if `add` returns true. Returns 1 if the bytes
-- ended the page, else 0.
local function each_row(command, key, from, to, count, add)
  local want, bytes, seen = 1, 0, 0
  repeat
    local rows = redis_call(command, key, from, to, 'COUNT', want)
    for _, entry in ipairs(rows) do
      local fields, size = entry[2], 0
      for i = 1, #fields do
        size = size + #fields[i]
      end
      seen, bytes = seen + 1, bytes + size
      if add(entry) then
        return 0
      end
      from = '(' .. entry[1]
    end
    if #rows < want or seen >= count then
      return 0
    end
    want = math.min(count - seen, bytes < FEW_BYTES and ROWS_PER_READ or 1)
  until bytes >= PAGE_BYTES_MAX
  return 1
end

return { each_row = each_row }
