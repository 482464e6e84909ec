-- suspects: the number of batches that may kill their worker which a process takes.
--
-- The process states its room as `MS[ CRASHES ROOM]…`, with CRASHES ascending. A batch with at
-- least CRASHES crashes is taken only if ROOM is above 0. A ROOM of `-` has no limit. A batch for
-- which there is no room waits for at least MS milliseconds.

-- Returns three values:
--   wait_ms          MS
--   admits(crashes)  whether a batch with so many crashes may be taken
--   taken(crashes)   notes that one was taken
local function suspects_of(text)
  local classes = {}
  for crashes, room in string.gmatch(text, ' (%d+) (%S+)') do
    classes[#classes + 1] = { crashes = tonumber(crashes), room = tonumber(room) }
  end

  local function room_for(crashes)
    local room
    for _, class in ipairs(classes) do
      if crashes >= class.crashes then
        room = class.room
      end
    end
    return room
  end

  local function admits(crashes)
    return (room_for(crashes) or 1) > 0
  end

  -- After a batch is taken, each class has less room than the class of that batch had before. So a
  -- batch with many crashes also leaves less room for batches with fewer crashes.
  local function taken(crashes)
    local room = room_for(crashes)
    for _, class in ipairs(room and classes or {}) do
      class.room = class.room and math.min(class.room, room) - 1
    end
  end

  return tonumber(string.match(text, '^%d+')) or 0, admits, taken
end

return { of = suspects_of }
