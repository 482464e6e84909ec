-- crons: reads a page of the cron jobs.
--
-- Purpose   Shows the jobs with the times of their last run and of their next tick. Writes nothing.
-- Keys      KEYS[1] events.cron (hash, read)
--           events.cron.next (zset), events.cron.last (hash): read
-- Arguments prefix
--           `one` and the name of a job; or `all`, the cursor of HSCAN, and about the number of
--           jobs in the page (1 to 100)
-- Replies   {'crons', ms since 1970, next cursor ('0': the end),
--           {name, value or '', bytes of the value, next tick or '', last run}…}. A value above
--           16 KiB is not shown whole: its event is cut
-- Keeps     writes nothing
-- Cost      about 3 commands per job; reads at most 1 MiB of jobs, and one bucket of the hash more.
--           If there are few jobs, HSCAN returns all of them at once, at most 128
local VALUE_BYTES_MAX = 16384
local reply = { 'crons', ids.text(rare.time.now_ms()), '0' }
local names = { ARGV[3] }
if ARGV[2] == 'all' then
  names, reply[3] = rare.schedules.scan(KEYS[1], ARGV[3], tonumber(ARGV[4]))
end
for _, name in ipairs(names) do
  local value = redis_call('HGET', KEYS[1], name)
  if value then
    local next_tick, last = redis_call('ZSCORE', P .. K.events_cron_next, name), redis_call('HGET', P .. K.events_cron_last, name)
    reply[#reply + 1] = { name, string.sub(value, 1, VALUE_BYTES_MAX), #value, next_tick or '', last or '' }
  end
end
return reply
