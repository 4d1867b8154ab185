-- A page of the hash of overrides. src/live/overrides/redis.rs describes KEYS and ARGV.
local cursor, fields, bytes = ARGV[1], {}, 0
repeat
  local page = redis.call('HSCAN', KEYS[1], cursor, 'COUNT', '10')
  cursor = page[1]
  for index = 1, #page[2], 2 do
    local field, text = page[2][index], page[2][index + 1]
    if #text > tonumber(ARGV[2]) then
      text = false
    end
    fields[#fields + 1], fields[#fields + 2] = field, text
    bytes = bytes + #field + (text and #text or 0)
  end
until cursor == '0' or bytes > tonumber(ARGV[3])
return { cursor, fields }
