-- state: what modules know of a call of advance.

-- Adds the fields to `C`, the state of the call, that only modules need; once per call. These are
-- `own`, the function that claims an object, and:
--   busy, entries, taken, claimed: advance itself makes them only if slots may claim. `busy`, by
--                 slot: whether the slot has a batch. `entries`: the batches of the reply. `taken`,
--                 by position in `entries`: the slot that has claimed the object of this batch in
--                 this call. `claimed`, by object: the slot that has claimed the object in this
--                 call. If no held object can be due, objects of markers are claimed without an
--                 entry in `claimed` (advance/turns.lua)
--   failed        the error that ends the call
--   base          by slot: the beginning of its keys
--   number        by slot: its number
--   result        by slot: the word of its result
--   object, prev  by slot with a result about parts of a batch: the object, and the `prev` of the
--                 object's next event
--   key           by slot: the key of the schedule whose event the slot has taken
--   handled       by number of a slot: true if handlers have finished for an event of the batch,
--                 then the progress that advance/finish.lua has read
--   looks         numbers of slots with the result `look`
--   quarantined   for the reply: objects that were put aside, each followed by the reason
--   put_aside     objects that were put aside
--   to_expire     keys that get a time to live
local function open(own)
  if C.name then
    return
  end
  C.own, C.name, C.logs, C.forgets, C.failed = own, ARGV[2], ARGV[14] == 'log', ARGV[10] ~= '0', C.failed or false
  C.busy, C.entries, C.taken, C.claimed = C.busy or {}, C.entries or {}, C.taken or {}, C.claimed or {}
  -- `markers_max`: markers that the call may still look at. `markers_used`: markers at the tail
  -- that are used, but not yet trimmed. `drops_left`: objects that the call may still pass over.
  C.markers_max, C.markers_used, C.drops_left = tonumber(ARGV[8]), 0, 256
  -- `grouped`: whether the groups take turns in this call. `unsorted`: whether markers or due held
  -- objects are left then that are not set aside.
  C.grouped, C.unsorted, C.key = false, false, {}
  -- `limited`: whether a share has a limit. `ready`: the names that a call can claim now; false if
  -- the groups took no turns.
  -- `full_by`: the counter of all objects, if it allows no claim.
  C.limited, C.ready, C.full_by = C.shares and string.byte(C.shares) == 50 or false, false, false
  C.object, C.prev, C.handled, C.looks, C.quarantined, C.put_aside, C.to_expire = {}, {}, {}, {}, {}, {}, {}
  setmetatable(C, { __index = function(made, list)
    -- Makes `base`, `number` or `result` when it is first used. By then the call has read all
    -- slots.
    local new, offset = {}, list == 'result' and 1 or (list == 'number' or list == 'base') and 2 or error('no ' .. list)
    local before = list == 'base' and P .. K.WORKER .. ARGV[2] .. '.' or ''
    for i, at in ipairs(made.arg) do
      new[i] = before .. ARGV[at - offset]
    end
    rawset(made, list, new)
    return new
  end })
end

-- Calls a function of a module, and returns its result. If the function fails, returns nil and
-- notes the error, so that the call of advance ends early.
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

-- Returns the error that ended the call, as a reply. Redis turns an error that pcall caught into a
-- text. The text begins with the code of the error, for example WRONGTYPE.
local function error_reply()
  local why = type(C.failed) == 'table' and C.failed.err or C.failed
  return redis.error_reply(string.match(why, '^%u+ ') and why or 'ERR ' .. why)
end

return { error_reply = error_reply, open = open, guard = guard, expire = expire }
