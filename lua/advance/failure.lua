-- failure: the reply of a call that has failed.

-- Returns the error that ended the call, as a reply. Redis turns an error that pcall caught into a
-- text. The text begins with the code of the error, for example WRONGTYPE.
local function reply()
  local why = type(call.failed) == 'table' and call.failed.err or call.failed
  return redis.error_reply(string.match(why, '^%u+ ') and why or 'ERR ' .. why)
end

return { reply = reply }
