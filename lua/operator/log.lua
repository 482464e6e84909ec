-- log: reads a page of the event log, and the number of rows ever written.
--
-- Purpose   Reads rows. With the number of rows ever written, a reader can tell whether rows were
--           trimmed before it had read them. Writes nothing.
-- Keys      KEYS[1] event.log (stream, read)
-- Arguments XRANGE | XREVRANGE
--           start
--           end
--           rows in the page (1 to 100)
--           bytes of each event in the reply (0: whole events)
--           1 to count the rows, or 0: the numbers and the last id of the reply are then 0 and 0-0
-- Replies   {'log', rows ever written, present rows, last id, {entry…}, 1 if the bytes ended the
--           page or 0}. The entry of a cut event has one field more: `event_bytes`, the length of
--           the whole event
-- Keeps     writes nothing
-- Cost      about 2 commands, and 1 per 2 rows. A page ends after the row with which it has 1 MiB
--           (values/page.lua). To count the rows, Redis also reads the first row
local event_bytes_max = tonumber(ARGV[5])

-- Cuts the event in the fields of a row, and adds its length.
local function cut(fields)
  for i = 1, #fields, 2 do
    local event = fields[i + 1]
    if fields[i] == 'event' and #event > event_bytes_max then
      fields[i + 1] = rare.text.beginning(event, event_bytes_max)
      fields[#fields + 1], fields[#fields + 2] = 'event_bytes', string.format('%d', #event)
    end
  end
end

if redis_call('EXISTS', KEYS[1]) == 0 then
  return { 'log', 0, 0, '0-0', {}, 0 }
end
local stream = { ['entries-added'] = 0, ['length'] = 0, ['last-generated-id'] = '0-0' }
if ARGV[6] == '1' then
  -- The short form of the command reads the last row, too.
  local info = redis_call('XINFO', 'STREAM', KEYS[1], 'FULL', 'COUNT', 1)
  for i = 1, #info, 2 do
    stream[info[i]] = info[i + 1]
  end
end
local rows = {}
local more = rare.page.each_row(ARGV[1], KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), function(entry)
  rows[#rows + 1] = entry
  if event_bytes_max > 0 then
    cut(entry[2])
  end
end)
return { 'log', stream['entries-added'], stream['length'], stream['last-generated-id'], rows, more }
