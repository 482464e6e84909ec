-- state: what modules know of a call of advance.

-- Adds to the state of the call, once, what advance itself does not need: `own`, which claims an
-- object, and these:
--   busy, entries, taken, claimed, which advance makes only if slots may claim
--   failed        the error that ends the call
--   number        slots: their numbers
--   result        slots: the words of their results
--   object, prev slots whose result named pieces of a batch: the object, and the id before its next
--                 events
--   key           slots: the key of the schedule whose event they have taken
--   handled       numbers of slots: whether handlers have finished for an event of the batch
--   looks         numbers of slots to look at
--   quarantined   the reply: objects that were put aside, each followed by the reason
--   put_aside     objects that were put aside
--   to_expire     keys that get a time to live
local function open(own)
  if C.name then
    return
  end
  C.own, C.name, C.logs, C.forgets, C.failed = own, ARGV[2], ARGV[13] == 'log', ARGV[10] ~= '0', C.failed or false
  C.busy, C.entries, C.taken, C.claimed = C.busy or {}, C.entries or {}, C.taken or {}, C.claimed or {}
  -- Markers that the call may still look at; those at the tail that are used and not trimmed yet;
  -- objects that may still be let go.
  C.markers_max, C.markers_used, C.drops_left = tonumber(ARGV[8]), 0, 256
  C.key = {}
  C.object, C.prev, C.handled, C.looks, C.quarantined, C.put_aside, C.to_expire = {}, {}, {}, {}, {}, {}, {}
  setmetatable(C, { __index = function(made, list)
    -- Every slot is named when one of these is first used.
    local new, offset = {}, list == 'number' and 2 or list == 'result' and 1 or error('no ' .. list)
    for i, at in ipairs(made.arg) do
      new[i] = ARGV[at - offset]
    end
    rawset(made, list, new)
    return new
  end })
end

-- Calls a function of a module. If it fails, the call of advance ends early; returns nothing then.
local function guard(run, ...)
  local done, got = pcall(run, ...)
  if done then
    return got
  end
  C.failed = C.failed or got
end

-- Gives the keys in `to_expire` their time to live.
local function expire()
  for _, key in ipairs(C.to_expire) do
    call('PEXPIRE', key, ARGV[10])
  end
  C.to_expire = {}
end

return { open = open, guard = guard, expire = expire }
