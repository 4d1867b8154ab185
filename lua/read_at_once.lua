-- Reads the states of all checks. Logs and sets of holders are long: later only parts are read.
if log_read or holders_read or not keys[1] then
  found, states = {}, {}
else
  found = call('MGET', list(keys))
  states = { list(found) }
end
