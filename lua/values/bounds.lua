-- bounds: the bounds of a call of advance, which the caller gives as one text, because the text of a
-- worker is mostly the same: six numbers with blanks between them, in the order of `read`.

-- The most texts that are remembered. Then all are forgotten.
local KNOWN_MAX = 100
local known, known_n = {}, 0

local function read(text)
  local events, bytes, reply_bytes, markers, forget_ms, depth = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  return {
    -- The events of a batch, and their bytes; the bytes of events in a reply; the markers that a
    -- call looks at.
    batch_events = tonumber(events), batch_bytes = tonumber(bytes), reply_bytes = tonumber(reply_bytes), markers = tonumber(markers),
    -- The ms, as text, after which the last id of a released object is forgotten; whether last ids
    -- are forgotten at all.
    forget_ms = forget_ms, forgets = forget_ms ~= '0',
    -- The parts of a name that are its group; 0: no groups.
    group_depth = tonumber(depth),
  }
end

-- Returns the bounds that a text gives.
local function of(text)
  local bounds = known[text]
  if not bounds then
    if known_n >= KNOWN_MAX then
      known, known_n = {}, 0
    end
    bounds = read(text)
    known[text], known_n = bounds, known_n + 1
  end
  return bounds
end

return { of = of }
