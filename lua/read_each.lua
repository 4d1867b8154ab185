-- Replaces read_at_once.lua for keys of several hash slots: Redis rejects an MGET of them, so each
-- key is read by itself. The first command on each key is a pcall. A key that the node does not
-- have, because its slot has moved or is being migrated, fails only its own checks: nothing is
-- written for them, and the caller sends them again.
found, states = {}, {}
if not log_read and not holders_read then
  local pcall = redis.pcall
  for index = 1, #keys do
    local state = pcall('GET', keys[index])
    found[index] = state and state.err == nil and state
  end
  states = { list(found) }
end
if usage then
  -- While a slot is being migrated, a counter may be here and its record may not. Then its checks
  -- fail too.
  local read_counter, lines = read, {}
  for at = 1, #ARGV[7], 22 do
    local index, number = struct.unpack('<HH', ARGV[7], at)
    local reply = index > 0 and redis.pcall('STRLEN', KEYS[#keys + number])
    if type(reply) == 'table' and string.find(reply.err, 'non local', 1, true) then
      lines[index], found[index], states[index] = reply.err, false, false
    end
  end
  read = function(index, code)
    if lines[index] then
      return index, fail(index, code, lines[index]), false
    end
    return read_counter(index, code)
  end
end
