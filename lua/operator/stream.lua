-- stream: reads the size of a stream.
--
-- Purpose   Counts the rows, and reads the id of the first row, without the rows themselves. Writes
--           nothing.
-- Keys      KEYS[1] event.log, events.dead or operator.actions (stream, read)
-- Arguments none
-- Replies   {'stream', present rows, rows ever written, id of the first row}; an absent stream has
--           the id `0-0`. A key of another type is an error, WRONGTYPE
-- Keeps     writes nothing
-- Cost      2 commands. Redis reads the first row; the short form of XINFO reads the last one, too
if redis_call('EXISTS', KEYS[1]) == 0 then
  return { 'stream', 0, 0, '0-0' }
end
local info, stream = redis_call('XINFO', 'STREAM', KEYS[1], 'FULL', 'COUNT', 1), {}
for i = 1, #info, 2 do
  stream[info[i]] = info[i + 1]
end
return { 'stream', stream['length'], stream['entries-added'], stream['recorded-first-entry-id'] }
