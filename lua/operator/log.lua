-- log: a page of the event log, and how many rows it ever had; writes nothing.
--
-- Purpose   Who reads on behind a row sees from these numbers whether rows were trimmed away that
--           it had not read.
-- Keys      KEYS[1] event.log (stream, read)
-- Arguments XRANGE | XREVRANGE; from; to; rows in the page (1 to 100)
-- Replies   {'log', rows ever written, rows there are, last id, {entry…}, 1 if the page ended
--           because of its bytes, or 0}
-- Keeps     none is touched
-- Cost      about 2 commands, and 1 for each 4 rows; a page ends behind the row with which it has 1
--           MiB (lib/page.lua)
-- Uses: page.each_row
if call('EXISTS', KEYS[1]) == 0 then
  return { 'log', 0, 0, '0-0', {}, 0 }
end
local info, stream = call('XINFO', 'STREAM', KEYS[1]), {}
for i = 1, #info, 2 do
  stream[info[i]] = info[i + 1]
end
local rows = {}
local more = M.page.each_row(ARGV[1], KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), function(entry)
  rows[#rows + 1] = entry
end)
return { 'log', stream['entries-added'], stream['length'], stream['last-generated-id'], rows, more }
