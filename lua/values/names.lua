-- names: recognizes names of objects that may belong to another namespace.

-- Returns whether the keys of an object with this name could belong to another namespace: the
-- prefix is empty, and the name begins with a brace. A script that meets such a name drops it,
-- reports it if it can, and touches no key of the object.
local function is_foreign(object)
  return P == '' and string.byte(object) == 123
end

return { is_foreign = is_foreign }
