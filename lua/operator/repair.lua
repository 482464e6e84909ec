-- repair: an operator puts keys right that belong together, after one of them was lost.
--
-- Purpose   Looks at each subject at one moment, and rebuilds what can be rebuilt from the other keys.
--           Names what only an operator can decide. A dry run only describes the steps. Repeating a
--           call changes nothing more. The calls of one action share one record.
-- Keys      KEYS[1] event.workers (hash, read)
--           operator.actions (stream), objects.with.events (list): read and written
--           all other keys of the subjects, spelled from the prefix: read and written
-- Arguments prefix
--           name of the operator (at most 1,000 bytes)
--           reason for the action (at most 1,000 bytes, may be '')
--           plan | do
--           the record that the calls share: as in operator/release_many.lua
--           due time of schedules that have lost theirs (ms since 1970; '': leave them)
--           1: without a namespace, lists without any other key of an object are queues, too; else ''
--           ids of dead workers, with a line feed behind each; `*` and a line feed: all that are no
--           slot of a registered name
--           then for each subject (at most 32) kind, name and hint, as for lua/check.lua. One more
--           kind, `emitted`, is an idempotency key. An object gets a marker only with the hint
--           `searched`
-- Replies   {'repaired', id of the record or '', lines}
--             lines  flat triples: the subject's position (from 1), a word, a text
--               left   not repaired: the text says why, and what to do
--               again  the subject needs a further call
--               solves a step of the subject puts the worker right that the text names
--               other words: the kind of the step that is done; in a dry run, that a call would do
--           {'denied', command}
--           {'wrong_type', key, its type}
-- Keeps     I1 to I9: checks the present state again before each step
-- Cost      about 30 commands per subject; 1 per event that gets a new id, 4 per dead letter, 1 per entry
--           of a queue that is searched for a schedule, and 1 per name in the list of a worker. After
--           1,000 of these entries or 1 MiB the other subjects need a further call. So a call moves or
--           reads up to 2,000 entries. All rules, shares and groups for `shared`
local record, due_ms, all_lists, dead = ARGV[5], ARGV[6], ARGV[7], ARGV[8]

if rare.mend.doing then
  local no = rare.actions.refused(KEYS[1], 'hash')
  if no then
    return no
  end
end
for _, key in ipairs(SHARED_TYPES) do
  local found = redis_call('TYPE', P .. key[1]).ok
  if found ~= key[2] and found ~= 'none' then
    return { 'wrong_type', P .. key[1], found }
  end
end

local others = { dead = {}, all_dead = false, all_lists = all_lists == '1', due_ms = due_ms ~= '' and due_ms or nil }
for worker in string.gmatch(dead, '([^\n]+)\n') do
  others.dead[worker], others.all_dead = true, others.all_dead or worker == '*'
end
local subjects = {}
for at = 9, #ARGV, 3 do
  subjects[#subjects + 1] = { kind = ARGV[at], name = ARGV[at + 1], hint = ARGV[at + 2] }
end

local mend = {
  object = rare.object.mend, worker = rare.orphan.mend, name = rare.rebuild.name, group = rare.rebuild.group, schedule = rare.rebuild.schedule,
  cron = rare.rebuild.cron, emitted = rare.rebuild.emitted, shared = rare.rebuild.shared,
}
for at, subject in ipairs(subjects) do
  rare.mend.begin(subjects, at)
  if rare.mend.is_full() then
    rare.mend.again()
  else
    mend[subject.kind](subject, others)
  end
end
local lines, steps, first, last = rare.mend.results()
local row = rare.mend.doing and rare.actions.note_many(record, 'repair', steps, first, last) or ''
return { 'repaired', row, lines }
