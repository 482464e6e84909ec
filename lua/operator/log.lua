-- log: a page of the event log, and how many rows it ever had. Writes nothing.
--
-- Purpose   Who reads on behind a row sees from these numbers whether rows were trimmed away that it had not read.
-- Keys      KEYS[1] event.log (stream, read)
-- Arguments XRANGE | XREVRANGE; from; to; rows in the page (1 to 100)
-- Replies   {'log', rows ever written, rows there are, last id, {entry…}}
-- Keeps     none is touched
-- Cost      about 3 commands
if redis.call('EXISTS', KEYS[1]) == 0 then
  return { 'log', 0, 0, '0-0', {} }
end
local info, stream = redis.call('XINFO', 'STREAM', KEYS[1]), {}
for i = 1, #info, 2 do
  stream[info[i]] = info[i + 1]
end
local rows = redis.call(ARGV[1], KEYS[1], ARGV[2], ARGV[3], 'COUNT', ARGV[4])
return { 'log', stream['entries-added'], stream['length'], stream['last-generated-id'], rows }
