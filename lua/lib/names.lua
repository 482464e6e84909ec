-- names: recognizes names of objects that may belong to another namespace.

-- Returns whether the name may be that of an object of a namespace: there is no namespace, and the
-- name begins with a brace. Its keys would be keys of that namespace. A script that meets such a
-- name drops it, reports it if it can, and touches no key of the object.
local function is_foreign(object)
  return P == '' and string.byte(object) == 123
end

return { is_foreign = is_foreign }
