-- names: which names of objects are not ours to touch.

-- Returns whether the name may be that of an object of a namespace, because it begins with a brace:
-- without a namespace, its keys would be keys of that one. A script that meets such a name drops
-- it, reports it where it can, and touches no key of the object.
local function is_foreign(object)
  return P == '' and string.byte(object) == 123
end

return { is_foreign = is_foreign }
