-- mark: pushes a mark, from which the age of the oldest marker is known.
--
-- Purpose   Pushes a mark while markers wait, at most one per second; the longer the oldest marker
--           has waited, the more rarely. Without markers, notes the time. Any process may call at
--           any time.
-- Keys      KEYS[1] event.marks (zset, read and write)
--           objects.with.events (list, read and write)
-- Arguments prefix
-- Replies   {'marked', pushed | noted | kept}
--           {'denied', command}
-- Keeps     writes no event
-- Cost      3 to 8 commands; up to 1,001 more after a step of the clock, and when the last marker
--           was taken. About 300 marks wait if the oldest marker has waited for a day
-- Uses: marks.push
local done, command = M.marks.push()
return command and { done, command } or { 'marked', done }
