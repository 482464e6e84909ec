-- counter: the counter of ids, for a Redis that has lost writes.

-- If `id`, which was given before, is above the counter, makes the counter jump above it. Returns
-- whether the counter leaves room for new ids.
local function rise_above(id)
  if id > call.counter then
    local risen = rare.jump.beyond(id)
    if ids.after(risen, 1024 * call.bounds.batch_events) > ids.MAX then
      return false
    end
    call.counter = risen
  end
  return true
end

-- Returns the object's last id; '0' if the id is absent or invalid. Uses MGET, which returns nil
-- for a key of a wrong type; GET would raise. An invalid id must not reach the caller. While the
-- batch is in hand, it is too late to hold the object. So the caller gets 0, which is below every
-- id.
local function last_of(object)
  local last = redis_call('MGET', P .. object .. K.last_event_id)[1]
  return last and ids.parse(last) and last or '0'
end

return { rise_above = rise_above, last_of = last_of }
