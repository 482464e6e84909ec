-- of_object: reads the rows of one object in a stream: some fields, each cut.
--
-- Purpose   Looks at some rows, and returns those of the object. Only the named fields of these
--           rows are returned, so large events of other objects do not travel. Writes nothing.
-- Keys      KEYS[1] event.log, events.dead or operator.actions (stream, read)
-- Arguments prefix
--           object
--           XRANGE | XREVRANGE
--           start of the page (`+` or `-`, or `(` and the id of the last row of the page before)
--           rows to look at (1 to 250), a blank, rows to return (1 and more)
--           the fields to return, with blanks between them: name, colon, bytes of its value (0: the
--           whole value). They are one argument: before a login, Redis refuses a command of more
--           than 10 words with an error that does not mention the login
-- Replies   {'of_object', rows looked at, id of the last of them or '', 1 if the bytes ended the
--           page or 0, {id of the row, value…}…}
--             value  of each named field, in order; nil for an absent field. If it is cut, a pair:
--                    its beginning, and the length of the whole value
-- Keeps     writes nothing
-- Cost      1 command per 2 rows. A page ends after the row with which it has 1 MiB (values/page.lua)
local object, command, from = ARGV[2], ARGV[3], ARGV[4]
local rows, most = string.match(ARGV[5], '^(%d+) (%d+)$')
rows, most = tonumber(rows), tonumber(most)

-- Returns the value of the field with this name. If a row has the field more than once, the last
-- one counts, as in all lists.
local function value_of(fields, name)
  for i = #fields - 1, 1, -2 do
    if fields[i] == name then
      return fields[i + 1]
    end
  end
end

-- Returns the value for the reply.
local function cut(value, bytes_max)
  if not value or bytes_max == 0 or #value <= bytes_max then
    return value or false
  end
  return { rare.text.beginning(value, bytes_max), #value }
end

local reply = { 'of_object', 0, '', 0 }
reply[4] = rare.page.each_row(command, KEYS[1], from, command == 'XRANGE' and '+' or '-', rows, function(entry)
  reply[2], reply[3] = reply[2] + 1, entry[1]
  if value_of(entry[2], 'object') == object then
    local row = { entry[1] }
    for name, bytes_max in string.gmatch(ARGV[6], '(%S+):(%d+)') do
      row[#row + 1] = cut(value_of(entry[2], name), tonumber(bytes_max))
    end
    reply[#reply + 1] = row
    return #reply - 4 >= most
  end
end)
return reply
