-- mark: pushes a mark, from which the age of the oldest marker is known.
--
-- Purpose   While markers wait, pushes a mark, at most one per second. Removes marks that are next
--           to be taken, because no marker waits before them. If no marker waits, records the time
--           instead. Any process may call at any time.
-- Keys      KEYS[1] event.marks (zset, read and write)
--           objects.with.events (list, read and write)
-- Arguments prefix
-- Replies   {'marked', pushed | noted | kept}
--           {'denied', command}
-- Keeps     writes no event
-- Cost      4 to 10 commands; up to 1,000 more after a step of the clock; 6 per mark that is next
--           to be taken, at most 500. About 17,000 marks wait if the oldest marker has waited for a
--           day, 41,000 after a year; never more than 50,000
local done, command = rare.marks.push()
return command and { done, command } or { 'marked', done }
