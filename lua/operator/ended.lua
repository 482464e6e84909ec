-- ended: what became of events of an object, from a page of the event log or of the dead letters;
-- writes nothing.
--
-- Keys      KEYS[1] event.log or events.dead (stream, read)
-- Arguments prefix; object; where the page begins, newest first (`+`, or `(` and the id of the last
--           row of the page before); rows in the page (1 to 100); events told of (1 and up)
-- Replies   {'ended', rows looked at, id of the last of them or '', 1 if the page ended because of
--           its bytes, or 0,
--             {id of the row, status, id, attempts, error, results}…}; '' for what a row lacks, and
--             `dead` for the status of a dead letter. Results of more than 64 KiB are left out
-- Keeps     none is touched
-- Cost      1 command for each 4 rows; a page ends behind the row with which it has 1 MiB
--           (lib/page.lua). The events are not told.
-- Uses: page.each_row
local RESULTS_BYTES_MAX = 65536
local object, from, rows, most = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local reply = { 'ended', 0, '', 0 }
reply[4] = M.page.each_row('XREVRANGE', KEYS[1], from, '-', rows, function(entry)
  local row = {}
  for i = 1, #entry[2], 2 do
    row[entry[2][i]] = entry[2][i + 1]
  end
  reply[2], reply[3] = reply[2] + 1, entry[1]
  if row.object == object then
    local results = row.results or ''
    reply[#reply + 1] = { entry[1], row.status or 'dead', row.id or '', row.attempts or '', row.error or '', #results <= RESULTS_BYTES_MAX and results or '' }
    return #reply - 4 >= most
  end
end)
return reply
