-- doctor: whether the Redis user has the rights of a worker.
--
-- Purpose   Finds a missing right before a worker is started. Writes nothing.
-- Keys      KEYS[1] seriatim.meta (not read: it tells a cluster which node runs the call)
-- Arguments prefix
-- Replies   {'ok', user may call functions 0|1} | {'denied', command}
-- Keeps     writes nothing
-- Cost      O(1)
local denied = rare.rights.missing()
if denied then
  return { 'denied', denied }
end
return { 'ok', rare.rights.may_call_functions() and 1 or 0 }
