-- guard: runs a step that may fail after the first write.

-- Returns the result of a function. If the function fails, returns nil and notes the error, so that
-- the call ends early. What was taken by then still gets its ids.
return function(run, ...)
  local done, got = pcall(run, ...)
  if done then
    return got
  end
  call.failed = call.failed or got
end
