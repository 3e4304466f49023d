-- Test driver: answers requests about job_submit_asrpt.lua on stdin/stdout, so that thousands of cases share a process.
-- A request is a count line and that many fields, each a length line and that many bytes; the answer is one such field.
local M = dofile(arg[1])
local input, output = io.stdin, io.stdout

local function field()
  local size = tonumber(input:read("*l"))
  return size == 0 and "" or input:read(size)
end

local ops = {}
local rules

function ops.rules(f)
  rules = select(2, M.parse_conf(f[2], {}))
  return ""
end

function ops.describe(f)
  local args = {}
  for i = 6, #f do args[i - 5] = f[i] end
  local job = M.describe(tonumber(f[2]), f[3], f[4], args, f[5], rules)
  return table.concat({ job.group, job.program, job.features_text, job.sizes }, " ")
end

function ops.attached(f)
  return M.attached(rules, f[2], f[3])
end

-- Instructions that an operation takes, in thousands rounded up.
local function steps(operation, f)
  local count = 0
  debug.sethook(function() count = count + 1000 end, "", 1000)
  operation(f)
  debug.sethook()
  return tostring(count)
end

function ops.steps(f) return steps(ops.describe, f) end

ops["attached-steps"] = function(f) return steps(ops.attached, f) end

function ops.keys(f)
  local keys = {}
  local job = { group = f[2], program = f[3], features_text = f[6] }
  for i, pair in ipairs(M.keys_of(job, tonumber(f[4]), tonumber(f[5]), f[7] or "")) do keys[i] = pair[1] .. pair[2] end
  return table.concat(keys, " ")
end

function ops.lookup(f)
  local chain, features = {}, { epochs = tonumber(f[3]), steps = tonumber(f[4]) }
  for i = 5, #f do chain[#chain + 1] = { tostring(i - 4), f[i] } end
  local a, trouble = M.lookup(f[2], chain, features)
  local figures = string.format("%.0f %.0f %.0f %.0f", a.n, a.low or 0, a.high or 0, a.mean or 0)
  return figures .. " " .. (a.level or "-") .. " " .. (a.seconds and "seconds" or "iterations") .. " " .. (trouble or "")
end

ops["why-unused"] = function(f) return M.why_unused(f[2], f[3], tonumber(f[4])) or "" end

function ops.comment(f)
  local h = M.parse_comment(f[2])
  return table.concat({ h.profile, h.dataset, h.interrupt, tostring(h.off), tostring(#h.complaints) }, " ")
end

-- submit: hook folder, default partition, name of a field whose reading or writing fails, then field, type, value ...
function ops.submit(f)
  local log, set = {}, {}
  slurm = { SUCCESS = 0, log_user = 1, log_error = 1 }
  for _, name in ipairs({ "log_user", "log_error" }) do
    slurm[name] = function(...) log[#log + 1] = name .. ": " .. string.format(...) end
  end
  local values = {}
  for i = 5, #f, 3 do
    local value = f[i + 2]
    if f[i + 1] == "n" then value = tonumber(value) end
    if f[i + 1] == "argv" then
      value = { [0] = "/path/script" }
      for word in f[i + 2]:gmatch("%S+") do value[#value + 1] = word end
    end
    values[f[i]] = value
  end
  local desc = setmetatable({}, {
    __index = function(_, key) if key == f[4] then error("forced by the test") end return values[key] end,
    __newindex = function(_, key, value)
      if "set " .. key == f[4] then error("forced by the test") end
      set[#set + 1] = key .. "=" .. (type(value) == "number" and string.format("%.0f", value) or value)
    end,
  })
  local parts = { other = { name = "other", flag_default = 0 }, [f[3]] = { name = f[3], flag_default = 1 } }
  if f[4] == "part_list" then parts = nil end
  local hook = M.open(f[2])
  local before = os.time()
  local rc = hook.job_submit(desc, parts, 1000)
  local rc2 = hook.job_modify(desc, {}, parts, 0)
  local lines = { "rc=" .. rc, "modify=" .. rc2, "now=" .. string.format("%.0f", before) }
  for _, text in ipairs(set) do lines[#lines + 1] = "set " .. text end
  for _, text in ipairs(log) do lines[#lines + 1] = text end
  return table.concat(lines, "\n")
end

-- garbage: hook folder, KB of a script, calls. The most KB that Lua holds after a call, beyond what it held before.
function ops.garbage(f)
  slurm = { SUCCESS = 0, log_user = 1, log_error = 1 }
  slurm.log_error = function() end
  local hook, calls, most = M.open(f[2]), tonumber(f[4]), 0
  local text = string.rep("x", 1024 * tonumber(f[3]))
  local fields = { tres_per_job = "gres:gpu:8", name = "train" }
  collectgarbage()
  local before = collectgarbage("count")
  for call = 1, calls do
    local reading = function(_, key)
      return key == "script" and text .. call or fields[key]
    end
    local desc = setmetatable({}, { __index = reading, __newindex = function() end })
    hook.job_submit(desc, { { name = "gpu", flag_default = 1 } }, 1000)
    most = math.max(most, collectgarbage("count") - before)
  end
  return string.format("%.0f", most)
end

while true do
  local count = input:read("*l")
  if not count then break end
  local fields = {}
  for i = 1, tonumber(count) do fields[i] = field() end
  local good, answer = pcall(ops[fields[1]], fields)
  if not good then answer = "DRIVER ERROR " .. tostring(answer) end
  output:write(#answer, "\n", answer)
  output:flush()
end
