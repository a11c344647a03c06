-- What the interpreter of Lua does in `check_lua.py`: tables, objects, coroutines, text, numbers.
math.randomseed(42)
local function sum(s) local h = 0; for i = 1, #s do h = (h * 31 + s:byte(i)) % 1000000007 end; return h end
-- string keys, counting, sorting with a comparison function
local counts, words = {}, {}
for i = 1, 60000 do
  local w = ("w%x"):format(math.random(0, 9000)) .. ("-"):rep(i % 5)
  if not counts[w] then words[#words + 1] = w end
  counts[w] = (counts[w] or 0) + 1
end
table.sort(words, function(a, b) return counts[a] > counts[b] or counts[a] == counts[b] and a < b end)
print(#words, words[1], counts[words[1]], words[#words], sum(table.concat(words, " ")))
local order = {}
for k in pairs(counts) do order[#order + 1] = k end
print("pairs", sum(table.concat(order)))
-- objects, closures, garbage
local Point = {}; Point.__index = Point
Point.__add = function(a, b) return setmetatable({x = a.x + b.x, y = a.y - b.y}, Point) end
local kept, p = {}, setmetatable({x = 0, y = 0}, Point)
for i = 1, 150000 do
  p = p + setmetatable({x = i, y = i / 2}, Point)
  kept[i % 20000 + 1] = function() i = i + p.x % 7; return i end
end
local total = 0
for _, f in ipairs(kept) do total = total + f() end
print("objects", p.x, p.y, total)
-- coroutines, pcall, error values
local function walk(n) if n > 0 then walk(n - 1); coroutine.yield(n); walk(n - 1) end end
local steps = 0
for n in coroutine.wrap(function() walk(13) end) do steps = steps + n end
local failures = 0
for i = 1, 2000 do
  local ok, e = pcall(function() local t = {("x"):rep(i)}; if i % 3 == 0 then error({code = #t[1]}) end; return t[i].y end)
  if not ok then failures = failures + (type(e) == "table" and e.code or 1) end
end
print("coroutines", steps, "failures", failures, select("#", table.unpack({}, 1, 200)))
-- text: gsub, gmatch, pack, a long string, a temporary file
local text = {}
for i = 1, 30000 do text[i] = ("%05d:%s;"):format(i, words[i % #words + 1]) end
text = table.concat(text)
local changed, n = text:gsub("(%d+):w(%x+)", function(a, b) return b .. "=" .. a end)
local packed = {}
for a, b in changed:gmatch("(%x+)=(%d+)") do packed[#packed + 1] = string.pack("<i4s2d", tonumber(b), a, #a / 3) end
packed = table.concat(packed)
local file <close> = assert(io.tmpfile())
file:write(packed, "\n", text); file:seek("set")
local back = file:read("a")
print("text", #text, n, #packed, sum(changed), sum(packed), back == packed .. "\n" .. text)
-- numbers: a matrix in nested tables, weak table, collection
local m = {}
for i = 1, 250 do m[i] = {}; for j = 1, 250 do m[i][j] = (i * j) % 17 + 0.5 end end
local trace = 0
for i = 1, 250 do for k = 1, 250 do trace = trace + m[i][k] * m[k][i] end end
local weak = setmetatable({}, {__mode = "k"})
for i = 1, 5000 do weak[{}] = i end
words, kept = nil, nil; collectgarbage()
print("numbers", ("%.3f"):format(trace), next(weak))
