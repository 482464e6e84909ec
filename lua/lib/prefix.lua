-- prefix: every script's first argument is what all keys begin with.
local P = ARGV[1]
