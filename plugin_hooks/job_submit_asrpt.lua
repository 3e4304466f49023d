-- slurm-asrpt's part of job_submit.lua: it tags jobs of managed partitions and leases them to asrptd.
--
--   dofile("/etc/slurm/asrpt/job_submit_asrpt.lua").open("/var/lib/asrpt-hook")
--
-- returns a table with job_submit and job_modify. They never raise an error and always return slurm.SUCCESS: if
-- something fails here, they log one line and the job stays as its user wrote it.
--
-- slurmctld calls them while it holds its locks. So they only process strings, read one small file (hook.conf), seek a
-- few times in another (table.txt), read a third (profiles.txt) if the owner names a profile, and truncate an empty one
-- (wakeup): no process, no socket, no SQL.
--
-- Runs on Lua 5.1 (which Debian's slurmctld links), 5.3 and 5.4. Lua 5.1 has doubles only, so all arithmetic stays
-- below 2^53. "%.0f" prints a whole number on all three; "%d" distinguishes integers and floats.
--
-- The grouping rules exist here only: asrptd's tools run this file, too (slurm_asrpt/hook/lua.py, docs/decisions/0024).
-- They call parse_rules, describe, fold_dates, keys_of, owned, attached, lookup and parse_comment of the table that it
-- returns. These functions depend on their arguments alone, and read no file but the one that lookup is given.

local M = {}

local byte, find, sub, match, gmatch, gsub = string.byte, string.find, string.sub, string.match, string.gmatch,
  string.gsub
local format, lower, upper, reverse, concat = string.format, string.lower, string.upper, string.reverse, table.concat

local MAX_CONF_BYTES, LIKELY_CONF_BYTES = 65536, 512 -- of hook.conf, and of its first part
local MAX_LEASE_S = 30 * 86400
local MAX_TAG_BYTES = 255
local PART_BYTES = 2048 -- of a script that count, at either end
local LONG, LONG_HEAD_BYTES, LONG_TAIL_BYTES = 16384, 256, 512 -- and of a script over LONG
local PART_LINES = 500 -- that are searched for them, at either end
local HEAD_BYTES, TAIL_BYTES, LIKELY_TAIL_BYTES = 32768, 8192, 2048
local LINE_COST = 16 -- bytes of PART_BYTES that each line uses beside its own
local ARGUMENT_BYTES, MAX_FEATURE_BYTES = 4096, 100

-- ---------------------------------------------------------------------------------------------------- hash

-- Two polynomials modulo primes just below 2^32 over six bytes at a time: h * M < 2^52 and the six bytes < 2^48,
-- so every sum is exact in a double. The two together distinguish any two six-byte blocks (P1 * P2 > 2^48).
local function hash(text)
  local size = #text
  local whole = size - size % 12
  local a, b = 1, 2
  for i = 1, whole, 12 do
    local c1, c2, c3, c4, c5, c6, d1, d2, d3, d4, d5, d6 = byte(text, i, i + 11)
    local v = c1 + c2 * 256 + c3 * 65536 + c4 * 16777216 + c5 * 4294967296 + c6 * 1099511627776
    a = (a * 1000003 + v) % 4294967291
    b = (b * 786433 + v) % 4294967279
    v = d1 + d2 * 256 + d3 * 65536 + d4 * 16777216 + d5 * 4294967296 + d6 * 1099511627776
    a = (a * 1000003 + v) % 4294967291
    b = (b * 786433 + v) % 4294967279
  end
  for i = whole + 1, size do
    local v = byte(text, i)
    a = (a * 1000003 + v) % 4294967291
    b = (b * 786433 + v) % 4294967279
  end
  a = (a * 1000003 + size) % 4294967291
  b = (b * 786433 + size) % 4294967279
  return format("%08x%08x", a, b)
end

-- --------------------------------------------------------------------------- which words of a script count

-- The rules are in docs/decisions/0008, their settings in hook.conf. Patterns hold no NUL (Lua 5.1 would stop there),
-- and none can take more than linear time.

local IGNORED = "" -- the meaning of a name that does not count and is not a feature
local START = { skip = 0 } -- a command must follow
local SETUP, SILENT, FIRST = "setup", "ignored", "first"
local SIZES = { { "=procs", "g" }, { "=nodes", "n" }, { "=tp", "t" }, { "=pp", "p" } } -- no feature name has a =

local OPERATORS = {}
for word in gmatch("; ;; && || | |& & ( ) { } ! if then elif else while until do", "%S+") do
  OPERATORS[word] = "begins"
end
OPERATORS["\\"] = "goes on"

-- Whether a pattern matches at any place of start, a plain text: much faster than trying the pattern at each byte.
local function any(text, start, pattern)
  local pos = find(text, start, 1, true)
  while pos and not find(text, pattern, pos) do
    pos = find(text, start, pos + 1, true)
  end
  return pos
end

-- The text with an @ for each date and each count of seconds since 1970.
function M.fold_dates(text)
  if any(text, "20", "^20%d%d[-_/.]?[01]%d") then
    text = gsub(text, "20%d%d[-_/.]?[01]%d[-_/.]?[0-3]%d", "@")
  end
  if find(text, "@", 1, true) then
    text = gsub(text, "@[-_T]?[0-2]%d[-_:.h]?[0-5]%d[-_:.m]?[0-5]?%d?", "@")
  end
  if any(text, "1", "^1[5-9]%d%d%d%d%d%d%d%d") then
    text = gsub(text, "1[5-9]%d%d%d%d%d%d%d%d", "@")
  end
  return text
end

local function option_key(text)
  return find(text, "[-A-Z]") and gsub(lower(text), "-", "_") or text
end

-- The number in a word, quoted or not, to ten digits. + 0.0 makes it a double on each Lua, and avoids minus zero.
local function number_in(word)
  local text = match(word, "^[\"']?(.*)$")
  text = match(text, "^(.*)[\"']$") or text
  if #word > 32 or not (find(text, "^%-?[0-9.]+$") or find(text, "^%-?[0-9.]+[eE][-+]?[0-9]+$")) then
    return nil
  end
  local value = tonumber(text)
  if not value or value >= 1e15 or value <= -1e15 then
    return nil
  end
  value = tonumber(format("%.10g", value)) + 0.0
  return value < 1e15 and value > -1e15 and value or nil
end

-- The quote that a value opens and does not close, if any.
local function open_quote(value)
  local c = byte(value)
  return (c == 34 or c == 39) and (#value == 1 or byte(value, #value) ~= c) and c or nil
end

-- The word without its quotes, its first byte, and the quote that it leaves open.
local function unquoted(word)
  local c = byte(word)
  if c ~= 34 and c ~= 39 then
    return word, c
  end
  local open = open_quote(word)
  word = sub(word, 2, open and -1 or -2)
  return word, byte(word), open
end

-- The name of the rule that sets a number aside, for watch.
local function rule_of(what)
  return byte(what) == 61 and "size " .. sub(what, 2) or "feature " .. what
end

local function base_name(word)
  return find(word, "/", 1, true) and match(word, "^.*/(.*)$") or word
end

-- Reads lines and arguments word by word. Made once for the rules; start begins a new job. The loop in line runs for
-- each word, so it asks the cheap and the frequent questions first. The tools pass a function watch(rule, word), which
-- is called for each word that does not count; slurmctld passes none.
local function reader(rules)
  local keys, commands, sizes, strip = rules.keys, rules.commands, rules.sizes, rules.strip_comments
  local out, n, mark, features, launched, plain -- out: the n words that count
  local launcher, skip, drop, quote, held, first, action, silent, through
  local sized -- the size that the next word gives
  local waiting -- takes the next word, if an earlier word needs one; returns false if it does not take the word
  local equal_signs, arrows -- whether the line has any
  local watch, core, dropped

  local function start(watching)
    watch = watching
    out, n, mark, features, launched, plain = {}, 0, 0, {}, {}, {}
    launcher, skip, drop, quote, held, first, action, silent, through = START, 0, 0, nil, nil, nil, nil, false, false
    waiting, sized = nil, nil
  end

  local function emit(word)
    n = n + 1
    out[n] = word
  end

  local function begin()
    if waiting then
      if held then emit(held) end
      if first then emit(first) end
      drop, held, first, action, waiting, sized = 0, nil, nil, nil, nil, nil
    end
    launcher, skip, quote, silent, through = START, 0, nil, false, false
  end

  local function finish()
    begin()
    if n > mark then
      emit("\n")
      mark = n
    end
  end

  local function program(word, name)
    launcher = nil
    emit(word)
    if name and name ~= "" then
      local names = through and launched or plain
      names[#names + 1] = name
    end
  end

  local function enter(spec, words)
    launcher, skip, through = spec, spec.skip, true
    if watch then watch("launcher", words) end
  end

  local function drop_words(count)
    drop = count
    waiting = count > 0 and dropped or waiting
  end

  local function redirects(word)
    local found = find(word, "^[0-9&]?>")
    if found and find(word, "^[0-9&]?>[>|]?$") then
      drop_words(1)
    end
    if watch and found then watch("redirection", word) end
    return found
  end

  -- the word after one that may begin a launcher of two words
  local function second(word)
    if arrows and redirects(word) then
      return true
    end
    local before = first
    first, waiting = nil, nil
    local name = base_name(before)
    local found = commands[name .. " " .. word]
    if type(found) == "table" then
      enter(found, before .. " " .. word)
    else
      program(before, name)
      core(word, byte(word))
    end
    return true
  end

  function dropped(word, _, open)
    drop, quote = drop - 1, open
    if sized then
      features[sized], sized = number_in(word), nil
    end
    if drop == 0 then
      waiting = first and second
    end
    if watch then watch("value", word) end
    return true
  end

  local function command(word)
    local name = base_name(word)
    local found = commands[name]
    if not found and #name <= 32 and find(name, "[0-9.]", #name) then
      found = commands[match(name, "^(.-)[0-9.]*$")]
    end
    if type(found) == "table" then
      enter(found, word)
    elseif found == FIRST then
      first, waiting = word, second
    elseif found == SILENT then
      silent = true
      if watch then watch("ignored command", word) end
    else
      program(word, not found and name)
    end
  end

  -- the meaning of a name, or of its last part after a dot
  local function action_of(name)
    local what = keys[name]
    if not what and find(name, "[-.A-Z]") then
      name = option_key(name)
      what = keys[name] or keys[match(name, "^.*%.(.*)$") or name]
    end
    return what
  end

  local function set_aside(what, value, word)
    local number = what ~= IGNORED and number_in(value)
    if what == IGNORED then
      quote = open_quote(value)
      if watch then watch("ignored option", word) end
    elseif number then
      features[what] = number
      if watch then watch(rule_of(what), word) end
    else
      emit(word)
    end
  end

  -- whether the word is the value of the option before it
  local function value(word, c, open)
    local what = action
    action, waiting = nil, nil
    if what == IGNORED then
      local taken = c ~= 45 or find(word, "^%-[0-9.]") ~= nil
      quote = taken and open or nil
      if watch and taken then watch("ignored option", word) end
      return taken
    end
    local number = number_in(word)
    if number then
      features[what] = number
      if watch then watch(rule_of(what), held .. " " .. word) end
    else
      emit(held)
    end
    held = nil
    return number ~= nil
  end

  local function option(word)
    local equals = equal_signs and find(word, "=", 1, true)
    local name = sub(word, byte(word, 2) == 45 and 3 or 2, (equals or 0) - 1)
    if launcher and launcher ~= START then
      local key = option_key(name)
      if watch then watch("launcher", word) end
      if equals then
        local text = sub(word, equals + 1)
        quote = open_quote(text)
        if sizes[key] then
          features[sizes[key]] = number_in(text)
        end
      else
        drop_words(launcher.values[key] or 0)
        sized = drop > 0 and sizes[key] or nil
      end
      return
    end
    launcher = nil
    local what = action_of(name)
    if not what then
      emit(word)
    elseif equals then
      set_aside(what, sub(word, equals + 1), word)
    else
      action, waiting = what, value
      held = what ~= IGNORED and word or nil
      if watch and not held then watch("ignored option", word) end
    end
  end

  local function assignment(word, equals)
    local from = byte(word) ~= 43 and 1 or byte(word, 2) ~= 43 and 2 or 3
    local what = action_of(sub(word, from, equals - 1))
    if what then
      set_aside(what, sub(word, equals + 1), word)
    else
      emit(word)
    end
  end

  function core(word, c)
    local open
    if c == 34 or c == 39 then
      word, c, open = unquoted(word)
    end
    if waiting and waiting(word, c, open) then
      return
    elseif c == 45 then
      return option(word)
    elseif arrows and c and c < 63 and redirects(word) then
      return
    end
    local equals = equal_signs and find(word, "=", 2, true)
    if equals then
      assignment(word, equals)
    elseif not launcher or not c then
      emit(word)
    elseif skip > 0 then
      skip = skip - 1
      if watch then watch("launcher", word) end
    else
      command(word)
    end
  end

  local function line(text)
    local last -- the operator that the last word is, if any
    local ends = find(text, ";", 1, true)
    equal_signs, arrows = find(text, "=", 1, true), find(text, ">", 1, true)
    for word in gmatch(text, "%S+") do
      local c, operator = byte(word), OPERATORS[word]
      if c == 35 and strip then break end
      last = operator
      if quote then
        if byte(word, #word) == quote then quote = nil end
        if watch and operator ~= "goes on" then watch("value", word) end
      elseif operator then
        if operator == "begins" then begin() end
      elseif ends and byte(word, #word) == 59 then
        if not silent then
          core(sub(word, 1, -2), c)
        elseif watch then
          watch("ignored command", (unquoted(sub(word, 1, -2))))
        end
        begin()
      elseif c > 62 and not (launcher or waiting or silent or equal_signs and find(word, "=", 2, true)) then
        n = n + 1 -- as core would, in a hurry
        out[n] = word
      elseif not silent then
        core(word, c)
      elseif watch then
        watch("ignored command", (unquoted(word)))
      end
    end
    if last ~= "goes on" then finish() end
  end

  local function arguments(args)
    local before, left = n, ARGUMENT_BYTES
    launcher, equal_signs, arrows = nil, true, true
    for i = 1, #args do
      left = left - #args[i] - 1
      if left < 0 then break end
      quote = nil
      core(args[i], byte(args[i]))
    end
    begin()
    return before
  end

  local function result()
    return out, features, #launched > 0 and launched or plain
  end

  return { start = start, line = line, finish = finish, arguments = arguments, result = result }
end

local function counts(line, rules)
  if rules.strip_comments and byte(line) == 35 then
    return false
  end
  for i = 1, #rules.ignore_lines do
    if find(line, rules.ignore_lines[i], 1, true) then
      return false
    end
  end
  return true
end

-- Where the next word begins; anchored, the pattern runs at its quickest.
local function past_blanks(text, pos)
  if (byte(text, pos) or 0) > 32 then
    return pos
  end
  local _, last = find(text, "^%s*", pos)
  return (last or #text) + 1 -- nil beyond the end, from Lua 5.2 on
end

-- Calls take with the lines that count, from the front; returns how many bytes it has read.
local function head_lines(text, left, rules, take)
  local pos, size, walked, strip = 1, math.min(#text, HEAD_BYTES), 0, rules.strip_comments
  local plain = #rules.ignore_lines == 0
  while left > 0 and walked < PART_LINES do
    pos = past_blanks(text, pos)
    if pos > size then
      return size
    end
    local stop = math.min(find(text, "\n", pos, true) or size + 1, size + 1)
    walked = walked + 1
    -- most comments end here, without a copy
    if not (strip and byte(text, pos) == 35) then
      local line = sub(text, pos, stop - 1)
      if plain or counts(line, rules) then
        line = #line > left and sub(line, 1, left) or line
        line = byte(line, #line) > 32 and line or match(line, "^.*%S")
        left = left - #line - LINE_COST
        take(line)
      end
    end
    pos = stop + 1
  end
  return math.min(pos - 1, size)
end

-- Calls take with the lines that count, from the back but in their order, and none before from.
local function tail_lines(script, from, part, rules, take, reach)
  local start, left = math.max(from, #script - reach), part
  local text = sub(script, start + 1)
  local back, size = reverse(text), #text
  local pos, walked, lines = 1, 0, {}
  while left > 0 and walked < PART_LINES do
    pos = past_blanks(back, pos)
    local stop = find(back, "\n", pos, true)
    if pos > size or not stop and start > from then
      break -- nothing left, or only the rest of a line that begins before
    end
    local line = match(sub(text, size - (stop or size + 1) + 2, size - pos + 1), "^%s*(.*)$")
    walked = walked + 1
    if counts(line, rules) then
      line = sub(line, -left)
      left = left - #line - LINE_COST
      lines[#lines + 1] = line
    end
    pos = (stop or size) + 1
  end
  if left > 0 and walked < PART_LINES and start > from and reach < TAIL_BYTES then
    return tail_lines(script, from, part, rules, take, TAIL_BYTES) -- rarely; reversing all of it costs too much
  end
  for i = #lines, 1, -1 do
    take(lines[i])
  end
end

-- ---------------------------------------------------------------------------------- group, program, features

-- Each name once.
local function once(names)
  local seen, found = {}, {}
  for i = 1, #names do
    if not seen[names[i]] then
      seen[names[i]] = true
      found[#found + 1] = names[i]
    end
  end
  return found
end

local function program_key(uid, names)
  return #names > 0 and hash(format("asrpt-program 1\n%.0f\n", uid) .. concat(names, "\n")) or ""
end

-- The features that fit into the tag, in the order of the settings, and their text, sorted by name.
local function fitting(features, rules)
  local kept, texts, size = {}, {}, -1
  for _, name in ipairs(rules.order) do
    local text = features[name] and name .. ":" .. format("%.10g", features[name])
    if text and size + 1 + #text <= MAX_FEATURE_BYTES then
      kept[name], size = features[name], size + 1 + #text
    end
  end
  for _, name in ipairs(rules.sorted) do
    if kept[name] then
      texts[#texts + 1] = name .. ":" .. format("%.10g", kept[name])
    end
  end
  return kept, concat(texts, ",")
end

-- How GPUs share the model, as far as the script tells.
local function sizes_text(found)
  local text = ""
  for i = 1, #SIZES do
    local value = found[SIZES[i][1]]
    if value and value >= 1 and value < 1e5 and value % 1 == 0 then
      text = text .. SIZES[i][2] .. format("%.0f", value)
    end
  end
  return text
end

-- What takes the lines: the reader. Before it watch, if there is one: watch("line", line, words that count before it).
local function taker(words, watch)
  return watch and function(line)
    watch("line", line, #(words.result()))
    words.line(line)
  end or words.line
end

-- Group, program, features and sizes of a job. Each field but the last is hashed with its length, so that no two jobs
-- hash the same text. watch (see reader and taker) serves the tools that explain a group.
function M.describe(uid, name, script, args, dataset, rules, watch)
  rules.reader = rules.reader or reader(rules)
  local words = rules.reader
  words.start(watch)
  local long, take = #script > LONG, taker(words, watch)
  local from = head_lines(script, long and LONG_HEAD_BYTES or PART_BYTES, rules, take)
  if from < #script then
    tail_lines(script, from, long and LONG_TAIL_BYTES or PART_BYTES, rules, take, LIKELY_TAIL_BYTES)
  end
  words.finish()
  local out, found, programs = words.result()
  programs = once(programs)
  local fold = rules.fold_dates and M.fold_dates or tostring
  local text, parts = fold(concat(out, " ")), {}
  if rules.arguments then
    for i = words.arguments(args) + 1, #out do
      local word = fold(out[i])
      parts[#parts + 1] = format("%.0f:", #word) .. word
    end
  end
  if rules.fold_digits then
    name = gsub(name, "[0-9]+", "#")
  end
  local arguments = concat(parts)
  local head = format("asrpt-group 2\n%.0f\n%.0f:%.0f:%.0f:", uid, #name, #dataset, #arguments)
  local features, features_text = fitting(found, rules)
  return {
    group = hash(concat({ head, name, dataset, arguments, text })),
    program = program_key(uid, programs),
    features = features,
    features_text = features_text,
    sizes = sizes_text(found),
    name = name, -- what counts of it
    programs = programs,
    words = out,
  }
end

-- A user's key. For each uid the lower half allows only one upper half, so no user can make the key of another user.
-- 40503 is odd, so no two uids below 2^32 share a product modulo it; 30011 spreads keys evenly.
function M.owned(uid, key)
  local lower = tonumber(sub(key, 9), 16)
  return format("%08x%08x", (uid * 40503 + lower * 30011) % 4294967296, lower)
end

local owned = M.owned
local CLUSTER_KEY = owned(4294967295, hash("asrpt-cluster 1\n")) -- as if of (uid_t)-1, whom nobody can be

-- The keys of a job from narrow to wide, each with its level. exact: the group with as many GPUs and the same features.
-- program: the user's other jobs of the same program. With a profile, keys of the group's jobs with that profile come
-- first; only these may count its iterations (true), as all others count seconds. Whatever group ids a user's scripts are made to have (they are no
-- secret, and their hash is not cryptographic), no run of that user teaches under a key of somebody else. Only the
-- cluster's key, the last, is everybody's.
function M.keys_of(job, uid, gpus, profile)
  local exact = format("asrpt-exact 1\n%s\n%.0f\n%s", job.group, gpus, job.features_text)
  local chain = {}
  if profile and profile ~= "" then
    chain[1] = { "e", owned(uid, hash(exact .. "\n" .. profile)), true }
    chain[2] = { "g", owned(uid, hash(format("asrpt-profiled 1\n%s\n%s", job.group, profile))), true }
  end
  chain[#chain + 1] = { "e", owned(uid, hash(exact)) }
  chain[#chain + 1] = { "g", owned(uid, job.group) }
  if job.program ~= "" then
    chain[#chain + 1] = { "p", owned(uid, job.program) }
  end
  chain[#chain + 1] = { "u", owned(uid, hash(format("asrpt-user 1\n%.0f", uid))) }
  chain[#chain + 1] = { "c", CLUSTER_KEY }
  return chain
end

-- --------------------------------------------------------------------------------------------- hook.conf

local FLAGS = { strip_comments = true, fold_digits = true, fold_dates = true, arguments = true }

local function words_of(text)
  local words = {}
  for word in gmatch(text, "%S+") do
    words[#words + 1] = word
  end
  return words
end

local function add_launcher(commands, words)
  local name, skip = match(words[1], "^(.-)%*([0-9])$")
  name = gsub(name or words[1], "/", " ")
  local values = {}
  for i = 2, #words do
    local option, count = match(words[i], "^(.*)=([1-9])$")
    values[option or words[i]] = tonumber(count) or 1
  end
  commands[name] = { skip = tonumber(skip) or 0, values = values }
  local first = match(name, "^(.*) ")
  if first and not commands[first] then
    commands[first] = FIRST
  end
end

-- Each kind of word list in hook.conf. Later lists win.
local LISTS = {
  feature = function(conf, words)
    if not conf.known[words[1]] then
      conf.known[words[1]] = true
      conf.order[#conf.order + 1] = words[1]
    end
    for i = 1, #words do conf.keys[words[i]] = words[1] end
  end,
  ignore_options = function(conf, words)
    for i = 1, #words do conf.keys[words[i]] = IGNORED end
  end,
  ignore_commands = function(conf, words)
    for i = 1, #words do conf.commands[words[i]] = SILENT end
  end,
  setup_commands = function(conf, words)
    for i = 1, #words do conf.commands[words[i]] = SETUP end
  end,
  launcher = function(conf, words) add_launcher(conf.commands, words) end,
  size = function(conf, words)
    for i = 2, #words do
      conf.sizes[words[i]] = "=" .. words[1]
      if conf.keys[words[i]] ~= IGNORED then conf.keys[words[i]] = "=" .. words[1] end
    end
  end,
}

-- The texts between the stars of a pattern, which may have none.
local function parts_of(pattern)
  local parts = {}
  for part in gmatch(pattern .. "*", "([^*]*)%*") do
    parts[#parts + 1] = part
  end
  return parts
end

-- The attachments of profiles: to groups, and to job names in the order in which they apply.
local ATTACHED = {
  attach_group = function(conf, profile, group) conf.groups[group] = profile end,
  attach_name = function(conf, profile, pattern)
    conf.names[#conf.names + 1] = { profile = profile, parts = parts_of(pattern) }
  end,
}

local function set_option(rules, key, value)
  if FLAGS[key] and (value == "0" or value == "1") then
    rules[key] = value == "1"
  elseif key == "ignore_line" and value ~= "" then
    rules.ignore_lines[#rules.ignore_lines + 1] = value
  elseif LISTS[key] then
    LISTS[key](rules, words_of(value))
  elseif ATTACHED[key] and find(value, "^[^ ]+ .") then
    ATTACHED[key](rules, match(value, "^([^ ]+) (.*)$"))
  else
    error("hook.conf is damaged: " .. key, 0)
  end
end

-- Compares bytes, whatever the locale of slurmctld.
local function before(a, b)
  for i = 1, math.min(#a, #b) do
    if byte(a, i) ~= byte(b, i) then
      return byte(a, i) < byte(b, i)
    end
  end
  return #a < #b
end

-- The rules of [group], and the attachments: what follows the # in hook.conf. Raises a string.
function M.parse_rules(text)
  local rules = { ignore_lines = {}, keys = {}, commands = {}, order = {}, known = {}, sorted = {} }
  rules.sizes, rules.groups, rules.names = {}, {}, {}
  for line in gmatch(text, "[^\n]+") do
    local key, value = match(line, "^([a-z_]+)=(.*)$")
    if not key then
      error("hook.conf is damaged: a line without =", 0)
    end
    set_option(rules, key, value)
  end
  for flag in pairs(FLAGS) do
    if rules[flag] == nil then
      error("hook.conf is damaged: no " .. flag, 0)
    end
  end
  for i = 1, #rules.order do rules.sorted[i] = rules.order[i] end
  table.sort(rules.sorted, before)
  return rules
end

-- The first part, exactly as asrptd writes it, and where the rules begin. One match: each heartbeat changes it.
local HEAD = "^(asrpt%-hook 2\npartitions=([^\n]*)\nlease_s=([0-9]+)\nvalid_until=([0-9]+)\nrules=([0-9a-f]+)\n)"
  .. "check=([0-9a-f]+)\n#\n()"

-- The settings in the text of hook.conf. Raises a string for anything that asrptd does not write. asrptd's heartbeat
-- changes the first part only: rules that state knows are not parsed again, and may be missing in the text.
function M.parse_conf(text, state)
  local head, names, lease_s, valid_until, rules_hash, check, start = match(text, HEAD)
  if not head or hash(head) ~= check then
    error("hook.conf is damaged (header or checksum)", 0)
  end
  local conf = { partitions = {}, lease_s = tonumber(lease_s), valid_until = tonumber(valid_until) }
  for name in gmatch(names, "[^,]+") do conf.partitions[name] = true end
  if rules_hash ~= state.rules_hash then
    local rest = sub(text, start)
    if hash(rest) ~= rules_hash then
      error("hook.conf is damaged (checksum of the rules)", 0)
    end
    state.rules, state.rules_hash, state.rules_line = M.parse_rules(rest), rules_hash, "\nrules=" .. rules_hash .. "\n"
  end
  return conf, state.rules
end

local function knows_rules(state, text)
  return state.rules_line and find(text, state.rules_line, 1, true) and find(text, "\n#\n", 1, true)
end

local function read_conf(state)
  local file, why = io.open(state.conf_path, "rb")
  if not file then
    error("cannot read hook.conf: " .. tostring(why), 0)
  end
  file:setvbuf("no")
  local text = file:read(LIKELY_CONF_BYTES) or ""
  local same = text == state.conf_text
  local enough = same or knows_rules(state, text)
  local whole = enough and text or text .. (file:read(MAX_CONF_BYTES) or "")
  file:close()
  if not same then
    state.conf_text = nil
    state.conf = M.parse_conf(whole, state)
    state.conf_text = enough and text
  end
  return state.conf, state.rules
end

-- --------------------------------------------------------------------------------------------- table.txt

local RECORD = 83
local MAX_ITERATIONS = 1e12
local UNIT_FEATURES = { e = "epochs", s = "steps" }

local WINDOW, MOST_WINDOWS = 8, 64 -- records per read, and reads per key before the table counts as damaged

local function damaged(what)
  error("table.txt is damaged: " .. what, 0)
end

-- The home of a key is exact: each product is below 2^52.
local function read_header(file)
  local line = file:read(RECORD) or ""
  local version, slots, records, a, b =
    match(line, "^asrpt%-table ([45]) ([1-9][0-9]*) ([0-9]+) ([0-9]+) ([0-9]+) *\n$")
  local other = not slots and match(line, "^asrpt%-table ([0-9]+) ")
  if other and #other <= 3 and other ~= "5" then
    damaged("format " .. other .. ", not 5")
  elseif #line ~= RECORD or not slots or #slots > 12 or #records > 12 or #a ~= 6 or #b ~= 6 then
    damaged("header")
  elseif file:seek("end") ~= (tonumber(records) + 1) * RECORD then
    damaged("cut short or too long")
  end
  return { slots = tonumber(slots), a = tonumber(a), b = tonumber(b), former = version == "4" }
end

local function entry_in(window, at)
  local key, n, low, high, mean, unit =
    match(window, "^([0-9a-f]+) ([0-9]+) ([0-9]+) ([0-9]+) ([0-9]+) ([-es])\n", at)
  if not key or #key ~= 16 or #n ~= 15 or #low ~= 15 or #high ~= 15 or #mean ~= 15 then
    damaged("record")
  end
  return { n = n / 1000, low = low / 1000, high = high / 1000, mean = mean / 1000, unit = unit }
end

-- A hash table: the record is at its home, or behind it and before the next blank record. Mostly one read.
local function search(file, header, key)
  local home = (tonumber(sub(key, 1, 8), 16) * header.a + tonumber(sub(key, 9), 16) * header.b) % 4294967291
  file:seek("set", (home % header.slots + 1) * RECORD)
  for _ = 1, MOST_WINDOWS do
    local window = file:read(WINDOW * RECORD) or ""
    local at = find(window, key, 1, true)
    if at then
      return entry_in(window, at)
    elseif find(window, "  ", 1, true) then
      return nil
    end
  end
  damaged("no blank")
end

local function whole(value, factor)
  return math.floor(math.min(math.max(value * factor, 1), MAX_ITERATIONS) + 0.5)
end

-- The first entry of the chain that can answer. An entry per epoch or step needs their number in the job's features.
-- A table of format 4, which is there until the first retraining after an upgrade, does not tell seconds from iterations.
local function answer(file, chain, features)
  local header = read_header(file)
  for i = 1, #chain do
    local entry = search(file, header, chain[i][2])
    local factor = entry and (entry.unit == "-" and 1 or features[UNIT_FEATURES[entry.unit]]) or 0
    if factor > 0 then
      local n, low, high = whole(entry.n, factor), whole(entry.low, factor), whole(entry.high, factor)
      local mean = entry.mean > 0 and whole(entry.mean, factor) or 0
      local seconds = not (chain[i][3] or header.former)
      return { n = n, low = low, high = high, mean = mean, level = chain[i][1], seconds = seconds }
    end
  end
  return { n = 0 }
end

-- The table's prediction for a chain of keys, n = 0 for an unseen job; and what is wrong with the table, if anything.
function M.lookup(path, chain, features)
  local file, why = io.open(path, "rb")
  if not file then
    return { n = 0 }, "cannot read table.txt: " .. tostring(why)
  end
  file:setvbuf("no") -- a few bytes here and there: a buffer would read 4 KiB each time
  local good, found = pcall(answer, file, chain, features)
  file:close()
  if good then
    return found, nil
  end
  return { n = 0 }, tostring(found)
end

-- ------------------------------------------------------------------------------------- what a job requests

local function given(text)
  return type(text) == "string" and text ~= ""
end

-- Whether the user set a number: for "not set" Slurm has NO_VAL of the field's width, or nil.
local function number_given(value)
  return type(value) == "number" and value ~= 4294967294 and value ~= 65534 and value ~= 18446744073709551614
end

-- The GPUs that a field names, nil if none. Items look like gres:gpu:2, gres:gpu:a100:2 (22.05), gres/gpu:2,
-- gres/gpu=2 (24.11).
local function scan_tres(text, found)
  local gpus
  for item in gmatch(given(text) and text or "", "[^,]+") do
    local plain, prefixed = gsub(item, "^gres[:/]", "")
    local name = match(plain, "^[^:=]*")
    local count = match(plain, "[:=]([0-9]+)[A-Za-z]?$")
    if count and tonumber(count) == 0 or name == "none" then
      name = nil
    elseif name == "gpu" then
      found.gpu = true
      gpus = (gpus or 0) + (count and #count <= 6 and tonumber(count) or 1)
    elseif name == "mps" or name == "shard" then
      found.shared = true
    elseif prefixed > 0 then
      found.other = true
    end
  end
  return gpus
end

local function counted(value)
  return number_given(value) and value > 0 and value < 1e6 and value or nil
end

-- The GPUs that --ntasks-per-gpu means for a job without any other option for GPUs; 0 without it.
local function gpus_of_tasks(desc, found)
  local tasks, of_gpu = counted(desc.num_tasks), counted(desc.ntasks_per_tres) or counted(desc.ntasks_per_gpu)
  local gpus = tasks and of_gpu and math.floor(tasks / of_gpu) or 0
  found.gpu = found.gpu or gpus > 0
  return gpus
end

-- Whether a job requests GPUs, and how many in total, as far as that is known before it is placed. Several options
-- name the same GPUs: those of the job count before those of each node, and these before those of each task.
local function gpu_request(desc)
  local nodes, found = counted(desc.min_nodes) or 1, {}
  local tasks = counted(desc.num_tasks) or (counted(desc.ntasks_per_node) or 1) * nodes
  local of_node = scan_tres(desc.tres_per_node, found)
  local others_by_node = found.other
  found.other = nil
  local of_job, of_socket = scan_tres(desc.tres_per_job, found), scan_tres(desc.tres_per_socket, found)
  local of_task = scan_tres(desc.tres_per_task, found)
  found.other = found.other or others_by_node and not found.gpu -- beside GPUs, asrptd knows those of each node
  local by_node, by_task = of_node or of_socket, of_task and of_task * tasks
  if by_node and by_task and not counted(desc.min_nodes) and counted(desc.num_tasks) then
    by_node = nil -- sbatch derives the nodes from the tasks
  end
  found.sure = of_job ~= nil
  found.gpus = of_job or by_node and by_node * nodes or by_task or gpus_of_tasks(desc, found)
  return found
end

local function default_partition(part_list)
  for _, part in pairs(part_list) do
    if part.flag_default == 1 then
      return part.name
    end
  end
  return ""
end

-- Whether a new job already has a tag. Slurm lets no user set the field; if it ever does, we remove the tag.
local function forged(comment)
  return given(comment) and find(comment, "^asrpt1:") ~= nil
end

-- What stays of a comment that the site's own hook has set, before the tag; none of one that has a tag in it.
local function kept(comment)
  return given(comment) and not find(comment, "asrpt1:", 1, true) and comment .. " " or ""
end

local function managed(desc, part_list, partitions)
  local names = desc.partition
  names = given(names) and names or default_partition(part_list)
  local any = false
  for name in gmatch(names, "[^,]+") do
    any = true
    if not partitions[name] then
      return false
    end
  end
  return any
end

local SHARES_WITH_SOME = { [2] = true, [3] = true, [4] = true } -- --exclusive=user, =mcs, =topo; 0 is --exclusive

-- Whether a --constraint has counts, or brackets other than [a|b] (all nodes have the same one of these).
local function counts_nodes(features)
  return find(features, "[%[*]") and not find(features, "^%[[^%[%]()&,*]+%]$")
end

-- Jobs in the queue whose nodes Slurm must choose: they have a lease, as others have.
local IN_THE_QUEUE = { exclusive = true, features = true, contiguous = true, switches = true, socket = true }

-- Why Slurm alone should handle this job or choose its nodes, or nil. The first reason counts.
local function why_left(desc, script, hints, found)
  if hints.off then return "off" end
  if number_given(desc.het_job_offset) then return "het" end
  if not given(script) then return "interactive" end
  if SHARES_WITH_SOME[desc.shared] then return "exclusive" end
  if given(desc.features) and counts_nodes(desc.features) then return "features" end
  if given(desc.dependency) and find(desc.dependency, "expand:", 1, true) then return "expand" end
  if desc.contiguous == 1 then return "contiguous" end
  if number_given(desc.req_switch) and desc.req_switch > 0 then return "switches" end
  if found.shared or found.other then return "gres" end
  if given(desc.tres_per_socket) then return "socket" end
  return nil
end

-- ------------------------------------------------------------------------------- hints in --comment, and the tag

local function good_name(text)
  return #text <= 64 and find(text, "^[A-Za-z0-9][A-Za-z0-9._+-]*$") ~= nil
end

local function printable(text)
  return (gsub(sub(text, 1, 200), "[^ -~]", "?"))
end

-- asrpt:profile=NAME,dataset=NAME,interrupt=SIGNAL or asrpt:off, at the start of a --comment or after a blank or
-- semicolon in it.
function M.parse_comment(comment)
  local hints = { profile = "", dataset = "", interrupt = "", off = false, complaints = {} }
  local text = match(comment, "^asrpt:([^ \t\n;]*)") or match(comment, "[ \t\n;]asrpt:([^ \t\n;]*)") or ""
  for item in gmatch(text, "[^,]+") do
    local key, value = match(item, "^([a-z]+)=(.*)$")
    if item == "off" then
      hints.off = true
    elseif (key == "profile" or key == "dataset") and good_name(value) then
      hints[key] = value
    elseif key == "interrupt" and (value == "off" or find(gsub(value, "^B:", ""), "^USR[12]$")) then
      hints.interrupt = value
    else
      hints.complaints[#hints.complaints + 1] = item
    end
  end
  return hints
end

local NO_HINTS = M.parse_comment("")

local function put(fields, key, value)
  if value and value ~= "" then
    fields[#fields + 1] = key .. "=" .. value
  end
end

-- Whether the name has the parts of a pattern in their order. The first place of each part is as good as a later one,
-- so this takes linear time for any pattern.
local function fits(name, parts)
  local first, last = parts[1], parts[#parts]
  if #parts == 1 then
    return name == first
  elseif sub(name, 1, #first) ~= first then
    return false
  end
  local from = #first + 1
  for i = 2, #parts - 1 do
    local _, stop = find(name, parts[i], from, true)
    if not stop then
      return false
    end
    from = stop + 1
  end
  return #name - #last + 1 >= from and sub(name, #name - #last + 1) == last
end

-- The profile that an admin attached to a job, "" for none.
function M.attached(rules, group, name)
  local profile = rules.groups[group]
  for i = 1, profile and 0 or #rules.names do
    if fits(name, rules.names[i].parts) then
      return rules.names[i].profile
    end
  end
  return profile or ""
end

-- The tag always fits without the features, so these are dropped first.
local function format_tag(job, found, profile, begin, left, interrupt)
  local fields = { "g=" .. job.group, format("n=%.0f", found.n) }
  put(fields, "p", profile)
  put(fields, "b", begin > 0 and format("%.0f", begin))
  put(fields, "l", left)
  put(fields, "i", found.high and format("%.0f-%.0f", found.low, found.high))
  put(fields, "m", (found.mean or 0) > 0 and format("%.0f", found.mean))
  put(fields, "k", job.program)
  put(fields, "v", profile ~= "" and found.seconds and upper(found.level) or found.level)
  put(fields, "s", profile ~= "" and job.sizes)
  put(fields, "c", interrupt)
  local short = concat(fields, ";")
  put(fields, "f", job.features_text)
  local text = concat(fields, ";")
  return "asrpt1:" .. (#text + 7 <= MAX_TAG_BYTES and text or short)
end

-- --------------------------------------------------------------------- profiles.txt, and what its owner is told at once

local MAX_PROFILES_BYTES = 262144

-- The GPUs of a profile in the text of profiles.txt: 0 if open, nil if there is no such profile.
local function gpus_of(text, name)
  local _, stop = find(text, "\n" .. name .. "=", 1, true)
  return stop and tonumber(match(text, "^[0-9]+", stop + 1))
end

-- The GPUs of tp4pp2dp2 or a part of that; nil for another text.
local function gpus_of_shape(shape)
  if shape == "1gpu" then
    return 1
  end
  local rest, gpus = shape, 1
  for _, kind in ipairs({ "tp", "pp", "dp" }) do
    local count, tail = match(rest, "^" .. kind .. "([1-9][0-9]*)(.*)$")
    if count then
      gpus, rest = gpus * tonumber(count), tail
    end
  end
  return shape ~= "" and rest == "" and gpus or nil
end

-- The GPUs that a job gets on whichever nodes, 0 if that depends on the nodes.
local function surely_gpus(desc, found)
  if found.shared then
    return 0
  elseif found.sure then
    return found.gpus
  elseif given(desc.tres_per_socket) then
    return 0
  elseif given(desc.tres_per_node) then
    return counted(desc.min_nodes) and desc.min_nodes == desc.max_nodes and found.gpus or 0
  end
  return (not given(desc.tres_per_task) or counted(desc.num_tasks)) and found.gpus or 0
end

-- Why a profile that the owner names will not be used, as far as this is known now; nil if nothing is wrong.
function M.why_unused(text, name, gpus)
  local wanted = gpus_of(text, name)
  local model, shape = match(name, "^(.+)%-([^-]+)$")
  if not wanted and model and gpus_of(text, model) == 0 then
    wanted = gpus_of_shape(shape)
  end
  if not wanted then
    return "there is no profile " .. name .. " (asrpt-profile list)"
  elseif wanted > 0 and gpus > 0 and wanted ~= gpus then
    return format("profile %s is for %.0f GPUs, but the job requests %.0f", name, wanted, gpus)
  end
end

local function why_profile_unused(path, name, gpus)
  local file = io.open(path, "rb")
  if not file then
    return nil -- asrptd has not written it yet
  end
  local text = file:read(MAX_PROFILES_BYTES)
  file:close()
  return text and M.why_unused(text, name, gpus)
end

-- argv[0] is the path of the script: it depends on where a job was submitted, not on what it does.
local function arguments_of(desc)
  local argv, args = desc.argv, {}
  local count = number_given(desc.argc) and desc.argc or 0
  for i = 1, math.min(count - 1, ARGUMENT_BYTES) do
    local value = argv and argv[i]
    args[i] = type(value) == "string" and value or ""
  end
  return args
end

-- ------------------------------------------------------------------------------------------ the two calls

local function say(channel, text)
  -- the log functions format: a % in the text must not reach them as a directive
  pcall(function() slurm[channel]("%s", text) end)
end

local function user_begin(desc, now)
  local begin = desc.begin_time
  if number_given(begin) and begin > now and begin < 1e12 then
    return begin
  end
  return 0
end

-- Tag and begin time (nil: unchanged) of a job; nothing for a job that is not managed.
local function decide(state, desc, part_list, uid, now)
  local conf, rules = read_conf(state)
  if not managed(desc, part_list, conf.partitions) then
    return nil
  end
  local found = gpu_request(desc)
  local with_gpus = found.gpu or found.shared
  local leases = conf.lease_s > 0 and conf.lease_s <= MAX_LEASE_S and now <= conf.valid_until
  if not with_gpus and not leases then
    return nil
  end
  local comment = desc.comment
  local hints = given(comment) and M.parse_comment(comment) or NO_HINTS
  local user = desc.user_id
  user = number_given(user) and user or uid
  local script = desc.script or "" -- once, because each read of the field copies it
  local name = desc.name or ""
  local job = M.describe(user, name, script, arguments_of(desc), hints.dataset, rules)
  local profile = hints.profile ~= "" and hints.profile or M.attached(rules, job.group, name)
  local predicted, trouble = M.lookup(state.table_path, M.keys_of(job, user, found.gpus, profile), job.features)
  local left = why_left(desc, script, hints, found)
  if left and left ~= "het" and not with_gpus then
    return nil
  end
  local unleased = left and not (leases and IN_THE_QUEUE[left])
  local begin, start = unleased and 0 or user_begin(desc, now), nil
  if not unleased and leases then
    start = math.max(begin, now + conf.lease_s)
  end
  local text = kept(desc.admin_comment) .. format_tag(job, predicted, profile, begin, left, hints.interrupt)
  if #text > MAX_TAG_BYTES then
    return nil -- no room beside the site's own text: the job is Slurm's
  end
  local unused = hints.profile ~= "" and why_profile_unused(state.profiles_path, profile, surely_gpus(desc, found))
  return text, start, hints.complaints, trouble, unused
end

-- Wakes asrptd: it looks at the time of this file. A plain file, because opening it never waits, as a pipe's would.
local function wake(path)
  local file = io.open(path, "wb")
  if file then
    file:close()
  end
end

-- What is wrong with the table is said once an hour: a new site has none yet, and a line for each job fills the log.
local AGAIN_S = 3600

local function say_of_table(state, trouble, now)
  if trouble and (trouble ~= state.trouble or now >= state.again) then
    say("log_error", "asrpt: " .. trouble .. "; the job counts as unseen, as do others (asrpt-admin retrain writes the table)")
    state.again = now + AGAIN_S
  end
  state.trouble = trouble
end

local function submit(state, desc, part_list, uid)
  local now = os.time()
  local tag, start, complaints, trouble, unused = decide(state, desc, part_list, uid, now)
  if not tag then
    if forged(desc.admin_comment) then
      desc.admin_comment = ""
    end
    return
  end
  say_of_table(state, trouble, now)
  if #complaints > 0 then
    say("log_user", "asrpt: ignored in --comment: " .. printable(concat(complaints, ", ")))
  end
  if unused then
    say("log_user", "asrpt: " .. unused .. "; the job counts as one without a profile")
  end
  -- the only lines that change the job; nothing after them can fail
  desc.admin_comment = tag
  if start then
    desc.begin_time = start
  end
  wake(state.wakeup_path)
end

local function success()
  return type(slurm) == "table" and slurm.SUCCESS or 0
end

-- Each script of 64 KB is copied into Lua. By default, the garbage collector would run a whole cycle inside the call
-- for every few scripts. So it is stopped during a call and then takes some steps, one for each KB_A_STEP that the call
-- has allocated, for at most PATIENCE_S unless much garbage has accumulated: marking is fast, sweeping may take ten
-- times as long. It must not start between two calls either: in Lua 5.1, the next step would make up for the delay.
local KB_A_STEP, PATIENCE_S, MUCH_KB = 8, 2e-5, 8192
local PAUSE_PCT = 1000 -- of the memory in use after a cycle; from there on a cycle starts by itself

local function collect_some(before)
  local steps = math.ceil(math.max(collectgarbage("count") - before, 0) / KB_A_STEP)
  local enough = os.clock() + PATIENCE_S
  while steps > 0 and (os.clock() < enough or collectgarbage("count") > MUCH_KB) do
    collectgarbage("step", 1)
    steps = steps - 1
  end
end

-- The hook of one directory with hook.conf, table.txt, profiles.txt and wakeup.
function M.open(hook_dir)
  local state = {
    conf_path = hook_dir .. "/hook.conf", table_path = hook_dir .. "/table.txt", wakeup_path = hook_dir .. "/wakeup",
    profiles_path = hook_dir .. "/profiles.txt",
  }
  pcall(collectgarbage, "setpause", PAUSE_PCT)
  return {
    job_submit = function(desc, part_list, uid)
      local before = collectgarbage("count")
      collectgarbage("stop")
      local good, trouble = pcall(submit, state, desc, part_list, uid)
      if not good then
        say("log_error", "asrpt: " .. printable(tostring(trouble)) .. "; job left as it is")
      end
      pcall(collect_some, before)
      collectgarbage("restart")
      return success()
    end,
    -- slurmctld calls this for each update by asrptd, too, so it does nothing
    job_modify = function()
      return success()
    end,
  }
end

return M
