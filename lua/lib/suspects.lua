-- suspects: how many batches that may kill its worker a process takes. The process says it as `MS[
-- CRASHES ROOM]…`, with CRASHES ascending. A batch with at least CRASHES crashes is taken while
-- there is ROOM; `-`: always. One that is not taken waits for MS at least.

-- Returns MS; a function that returns whether a batch with so many crashes may be taken; and one
-- that notes that it was.
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

  -- A batch with more crashes leaves less room for those with fewer.
  local function taken(crashes)
    local room = room_for(crashes)
    for _, class in ipairs(room and classes or {}) do
      class.room = class.room and math.min(class.room, room) - 1
    end
  end

  return tonumber(string.match(text, '^%d+')) or 0, admits, taken
end

return { of = suspects_of }
