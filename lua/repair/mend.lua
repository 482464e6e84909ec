-- mend: the steps of a repair. Each is done, or only described in a dry run.
local doing, lines, position = ARGV[4] == 'do', {}, 0
-- The number of steps, and the first and the last subject with a step.
local steps, first, last = 0, nil, nil
local subjects
-- The most entries and bytes that one call moves or reads in batches and queues. A call ends its present
-- subject above them.
local ENTRIES_MAX, BYTES_MAX = 1000, 1048576
local entries, bytes = 0, 0

-- Tells which subject the next steps belong to.
local function begin(all, at)
  subjects, position = all, at
end

local function tell(word, what)
  local n = #lines
  lines[n + 1], lines[n + 2], lines[n + 3] = position, word, what
end

-- Adds a step. `word`: its kind; `what`: a text for people; `change`: makes the change.
local function step(word, what, change)
  tell(word, what)
  steps, first, last = steps + 1, first or subjects[position].name, subjects[position].name
  if doing then
    change()
  end
end

-- Tells that the subject cannot be repaired without an operator; `what`: the reason, and a remedy.
local function leave(what)
  tell('left', what)
end

-- Tells that a step puts this worker right, too. In a dry run the worker still looks broken.
local function solves(worker)
  tell('solves', worker)
end

-- Tells that the subject needs another call.
local function again()
  tell('again', '')
end

-- Counts entries of a batch or queue that the call has moved or read.
local function spend(more_entries, more_bytes)
  entries, bytes = entries + more_entries, bytes + more_bytes
end

-- Returns whether the call has moved and read as much as one call may.
local function is_full()
  return entries >= ENTRIES_MAX or bytes >= BYTES_MAX
end

-- Returns flat triples (position, word, text), the number of steps, and the first and the last
-- subject with a step.
local function results()
  return lines, steps, first, last
end

return {
  begin = begin, step = step, leave = leave, solves = solves, again = again, spend = spend, is_full = is_full, results = results,
  doing = doing,
}
