-- worker: the id of a worker, `NAME.SLOT`.

-- Returns the end of a worker id, which follows the name.
local function ending(slot)
  return '.' .. slot
end

-- Returns the id of the worker with this name and slot.
local function id(name, slot)
  return name .. '.' .. slot
end

-- Returns the beginning of the keys of the slot with this worker id.
local function at(worker)
  return P .. K.WORKER .. worker
end

-- Returns the name and the slot of a worker id; nil for any other text.
local function parse(worker)
  local name, slot = string.match(worker, '^([%w_-]+)%.(%d+)$')
  return name, tonumber(slot)
end

return { ending = ending, id = id, at = at, parse = parse }
