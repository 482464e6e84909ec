-- claim: free slots get objects: first of the names in their own lists, then of due held objects and markers in turn.

-- The names in the slot's own W:object: moved there by a pop, or left there by a lost reply.
local function claim_taken(slot)
  local w, taken = slot.w, call('LRANGE', slot.list, 0, -1)
  for i = #taken, 1, -1 do
    local object = taken[i]
    local foreign = is_foreign(object)
    local found = not foreign and call('MGET', P .. object .. event_worker, P .. object .. last_event_id)
    progress = true
    -- A name may be there twice, by two pops: the second one says nothing more.
    if foreign then
      call('LREM', slot.list, '1', object)
      report_foreign(object)
    elseif object == '' or object == slot.object or found[1] and found[1] ~= w then
      call('LREM', slot.list, '1', object)
    elseif slot.has or claims <= 0 or reply_bytes <= 0 then
      if found[1] then
        hold().now(slot, object)
      else
        hold().stray(hold().at_of(slot), object)
        markers_left = markers_left + 1
      end
    elseif own(slot, object, found[1], found[2], false, true) == 'empty' then
      call('LREM', slot.list, '1', object)
      delete_later(P .. object .. event_worker)
      forget_later(object)
    end
    -- Another slot's list may have the same name.
    write_down()
  end
end

-- Due objects that this call may still let go: behind them it claims nothing further, and the next call goes on.
local drops_left = 256
local due, due_at, due_end = {}, 0, false
local function next_due()
  repeat
    if due_at == #due and not due_end then
      due, due_at = call('ZRANGE', P .. objects_held, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, claims), 0
      due_end = #due == 0
    end
    due_at = due_end and 0 or due_at + 1
  until due_end or not put_aside[due[due_at]]
  return due[due_at]
end

-- Held objects and markers in turn, one and one; where one side has nothing, the other goes on. Markers left that this call may not look at
-- are not nothing: their turn goes on with the next call, or an object behind the many that busy ones leave would wait for turns of all of those.
local function claim(slot)
  local without = 0
  while without < 2 and claims > 0 and reply_bytes > 0 and not slot.has do
    local got
    local from_held, put_aside_before = from == 'held', #quarantined
    if from_held then
      local object = not due_end and next_due()
      got, from = object and held()(slot, object), 'markers'
    else
      got = markers().claim(slot)
      if not got and markers_left > 0 then
        return
      end
      -- A marker that led nowhere does not use up the turn of the markers.
      from = got == 'dropped' and 'markers' or 'held'
    end
    if #quarantined > put_aside_before then
      -- To put an object aside takes as long as to let four go.
      drops_left = drops_left - 4
    elseif got == 'dropped' and from_held then
      drops_left = drops_left - 1
    end
    if drops_left <= 0 then
      claims = 0
    end
    without = got and 0 or without + 1
  end
end
