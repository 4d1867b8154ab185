-- First part of the script for keys of several hash slots of one node of a cluster. Redis accepts
-- declared keys of one slot only, so these keys are in ARGV: their number, the keys, then the
-- arguments described in frame.lua. Redis lets a script without a `#!` line access all keys of the
-- node in this way, and rejects a command on a key of another node.
local KEYS, ARGV = { unpack(ARGV, 2, ARGV[1] + 1) }, { unpack(ARGV, ARGV[1] + 2) }
