-- The first part of the script for keys of several hash slots of one node of a cluster, which cannot be declared: Redis takes declared keys of one slot
-- only. It takes them from ARGV: their number, the keys, then the arguments that frame.lua describes. Redis lets a script without a `#!` line
-- access all keys of the node in this way, and refuses each command on another key.
local KEYS, ARGV = { unpack(ARGV, 2, ARGV[1] + 1) }, { unpack(ARGV, ARGV[1] + 2) }
