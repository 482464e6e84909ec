-- sequence: the order in which slots claim held objects and markers.

-- Returns whether the groups take turns in this call. They do if names are grouped, or
-- if a share has a limit. Otherwise objects must have groups. Then groups take turns if more
-- objects wait than the call can claim. The key of `call.shares` is there before the first share
-- is.
local function is_grouped()
  if call.waiting > 0 or call.limited then
    return true
  elseif call.bounds.group_depth == 0 and not (call.shares and rare.known_shares.makes_groups) then
    return false
  end
  local claims_left = budget.claims_left
  return call.markers_left > claims_left
    or call.is_due and redis_call('ZCOUNT', call.keys.held, '-inf', rare.time.now_ms()) > claims_left
end

-- Claims for all free slots.
local function claim()
  if is_grouped() then
    rare.groups.open()
    rare.markers.claim_all()
  elseif call.is_due or call.held_changed then
    rare.in_turn.claim_all()
  else
    local got = rare.markers.claim_all()
    call.from = not got and call.from or got == 'claimed' and 'held' or 'markers'
  end
end

return { claim = claim }
