-- Wireshark's eyes for DSP1, the wire of remote DSpark drafting (contract 1.8, sections 5 and 6).
-- Installed by `dsparkctl wire dissector`. Reads TCP streams of ports 18620 and 18621 ("Decode As"
-- for others) and the recordings of dsparkctl's flight recorder (link type USER0).

local dsp1 = Proto("dsp1", "Remote DSpark drafting (DSP1)")

local OPS = {[1] = "HELLO", [2] = "STEP", [3] = "RESET", [4] = "STATS", [5] = "PING"}
local FRAME = {[0] = "OK", [1] = "BAD_VERSION", [2] = "IDENTITY_MISMATCH", [3] = "CONFIG_MISMATCH",
               [4] = "NO_SESSION", [5] = "STALE_SEQ", [6] = "MALFORMED", [7] = "CAPACITY",
               [8] = "INTERNAL", [9] = "UNSUPPORTED_OP"}
local ENTRY = {[0] = "OK", [1] = "PARTIAL_WINDOW", [2] = "STALE_GENERATION", [3] = "BAD_ENTRY",
               [4] = "INTERNAL"}
local HEADER, MAX_MESSAGE = 32, 16 * 1024 * 1024

-- The tables of section 6: name, type, offset, size. `f.<record>.<name>` are their fields.
local RECORDS = {
  app = {{"magic", "u32x", 0, 4}, {"version", "u16", 4, 2}, {"op", "u16", 6, 2, OPS},
         {"seq", "u64", 8, 8}, {"session", "u32x", 16, 4}, {"body_len", "u32", 20, 4},
         {"status", "i32", 24, 4, FRAME}, {"flags", "u32x", 28, 4}},
  hello = {{"proto_min", "u32", 0, 4}, {"proto_max", "u32", 4, 4}, {"num_spec", "u32", 8, 4},
           {"window", "u32", 12, 4}, {"hidden", "u32", 16, 4}, {"n_taps", "u32", 20, 4},
           {"tap_layer_ids", "bytes", 24, 16}, {"payload_kind", "u32", 40, 4},
           {"row_bytes", "u32", 44, 4}, {"noise_token_id", "u32", 48, 4},
           {"vocab_size", "u32", 52, 4}, {"max_model_len", "u32", 56, 4},
           {"max_slots", "u32", 60, 4}, {"max_rows_per_step", "u32", 64, 4},
           {"sample_mode", "u32", 68, 4}, {"tp_size", "u32", 72, 4}, {"reserved", "u32", 76, 4},
           {"drafter_identity", "bytes", 80, 32}, {"markov_identity", "bytes", 112, 32},
           {"client_name", "text", 144, 48}},
  hello_reply = {{"proto", "u32", 0, 4}, {"max_slots", "u32", 4, 4},
                 {"max_rows_per_step", "u32", 8, 4}, {"capabilities", "u32x", 12, 4},
                 {"window", "u32", 16, 4}, {"num_spec", "u32", 20, 4},
                 {"drafter_identity", "bytes", 24, 32}, {"markov_identity", "bytes", 56, 32},
                 {"worker_name", "text", 88, 40}},
  step = {{"step_id", "u64", 0, 8}, {"n_req", "u16", 8, 2}, {"step_flags", "u16x", 10, 2},
          {"n_rows", "u32", 12, 4}, {"row_bytes", "u32", 16, 4}, {"rows_offset", "u32", 20, 4},
          {"reserved", "bytes", 24, 8}},
  entry = {{"slot", "u8", 0, 1}, {"req_flags", "u8x", 1, 1}, {"k_window", "u8", 2, 1},
           {"n_out", "u8", 3, 1}, {"generation", "u32", 4, 4}, {"first_pos", "i64", 8, 8},
           {"n_rows", "u32", 16, 4}, {"anchor_token", "i32", 20, 4}, {"anchor_pos", "i64", 24, 8}},
  reply = {{"step_id", "u64", 0, 8}, {"n_req", "u16", 8, 2}, {"num_spec", "u16", 10, 2},
           {"reply_flags", "u32x", 12, 4}, {"worker_us", "u32", 16, 4},
           {"recv_to_send_us", "u32", 20, 4}, {"reserved", "bytes", 24, 8}},
  status = {{"status", "u16", 0, 2, ENTRY}, {"window_rows", "u16", 2, 2},
            {"generation", "u32", 4, 4}},
  reset = {{"slot_mask", "u32x", 0, 4}},
}

local MAKE = {
  u8 = {ProtoField.uint8}, u8x = {ProtoField.uint8, base.HEX},
  u16 = {ProtoField.uint16}, u16x = {ProtoField.uint16, base.HEX},
  u32 = {ProtoField.uint32}, u32x = {ProtoField.uint32, base.HEX},
  u64 = {ProtoField.uint64}, i32 = {ProtoField.int32}, i64 = {ProtoField.int64},
}
local f, all = {}, {}
for record, fields in pairs(RECORDS) do
  f[record] = {}
  for _, field in ipairs(fields) do
    local name, kind, names = field[1], field[2], field[5]
    local filter, made = "dsp1." .. record .. "." .. name, nil
    if kind == "bytes" then made = ProtoField.bytes(filter, name)
    elseif kind == "text" then made = ProtoField.stringz(filter, name)
    else made = MAKE[kind][1](filter, name, MAKE[kind][2] or base.DEC, names) end
    f[record][name] = made
    all[#all + 1] = made
  end
end
local function also(made) all[#all + 1] = made; return made end
local draft_id = also(ProtoField.int32("dsp1.draft_id", "draft_id"))
local confidence = also(ProtoField.float("dsp1.confidence", "confidence"))
local margin = also(ProtoField.float("dsp1.margin", "margin"))
local rows = also(ProtoField.bytes("dsp1.rows", "row block"))
local json = also(ProtoField.string("dsp1.stats", "STATS"))
dsp1.fields = all

local cut = ProtoExpert.new("dsp1.cut", "The recording holds no more of it",
                            expert.group.UNDECODED, expert.severity.NOTE)
local odd = ProtoExpert.new("dsp1.odd", "Sizes contradict each other",
                            expert.group.MALFORMED, expert.severity.WARN)
dsp1.experts = {cut, odd}

local SIZE = {app = 32, hello = 192, hello_reply = 128, step = 32, entry = 32, reply = 32,
              status = 8, reset = 4}

-- One record of the tables above; false where the buffer ends before it.
local function put(tree, record, buffer, at, title)
  if buffer:len() < at + SIZE[record] then
    tree:add_proto_expert_info(cut)
    return false
  end
  local here = tree:add(buffer(at, SIZE[record]), title)
  for _, field in ipairs(RECORDS[record]) do
    here:add_le(f[record][field[1]], buffer(at + field[3], field[4]))
  end
  return true
end

local function step(tree, buffer, info)
  if not put(tree, "step", buffer, HEADER, "StepHeader") then return info end
  local n_req = buffer(HEADER + 8, 2):le_uint()
  for i = 0, n_req - 1 do
    if not put(tree, "entry", buffer, HEADER + 32 + 32 * i, "ReqEntry " .. i) then return info end
  end
  local n_rows, start = buffer(HEADER + 12, 4):le_uint(), buffer(HEADER + 20, 4):le_uint()
  if n_rows > 0 then
    if buffer:len() > HEADER + start then tree:add(rows, buffer(HEADER + start))
    else tree:add_proto_expert_info(cut) end
  end
  return info .. " step_id=" .. tostring(buffer(HEADER, 8):le_uint64()) .. " n_req=" .. n_req ..
         " rows=" .. n_rows
end

local function values(tree, field, buffer, at, n)
  for i = 0, n - 1 do tree:add_le(field, buffer(at + 4 * i, 4)) end
end

local function step_reply(tree, buffer, info)
  if not put(tree, "reply", buffer, HEADER, "ReplyHeader") then return info end
  local n_req, n = buffer(HEADER + 8, 2):le_uint(), buffer(HEADER + 10, 2):le_uint()
  local arrays = 2 + buffer(HEADER + 12, 4):le_uint() % 2
  local at = HEADER + 32
  if buffer:len() ~= at + 8 * n_req + 4 * n * n_req * arrays then
    tree:add_proto_expert_info(odd)
    return info
  end
  local said = {}
  for i = 0, n_req - 1 do
    put(tree, "status", buffer, at + 8 * i, "ReqStatus " .. i)
    local code = buffer(at + 8 * i, 2):le_uint()
    said[#said + 1] = (ENTRY[code] or code) .. "/" .. buffer(at + 8 * i + 2, 2):le_uint()
  end
  at = at + 8 * n_req
  for i = 0, n_req - 1 do
    local here = tree:add(buffer(at + 4 * n * i, 4 * n), "Drafts of entry " .. i)
    values(here, draft_id, buffer, at + 4 * n * i, n)
    values(here, confidence, buffer, at + 4 * n * (n_req + i), n)
    if arrays == 3 then values(here, margin, buffer, at + 4 * n * (2 * n_req + i), n) end
  end
  return info .. " step_id=" .. tostring(buffer(HEADER, 8):le_uint64()) .. " " ..
         table.concat(said, " ") .. " worker_us=" .. buffer(HEADER + 16, 4):le_uint()
end

-- One message without its length prefix.
local function message(buffer, pinfo, tree, is_reply)
  local here = tree:add(dsp1, buffer())
  if not put(here, "app", buffer, 0, "AppHeader") then return end
  local op, status = buffer(6, 2):le_uint(), buffer(24, 4):le_int()
  local info = (OPS[op] or ("op " .. op)) .. (is_reply and " reply" or "") .. " seq=" ..
               tostring(buffer(8, 8):le_uint64())
  if is_reply then info = info .. " " .. (FRAME[status] or ("status " .. status)) end
  if op == 1 and not is_reply then put(here, "hello", buffer, HEADER, "HELLO")
  elseif op == 1 and buffer:len() > HEADER then
    put(here, "hello_reply", buffer, HEADER, "HELLO reply")
  elseif op == 2 and not is_reply then info = step(here, buffer, info)
  elseif op == 2 and status == 0 then info = step_reply(here, buffer, info)
  elseif op == 3 and not is_reply then put(here, "reset", buffer, HEADER, "RESET")
  elseif op == 4 and is_reply and buffer:len() > HEADER then here:add(json, buffer(HEADER)) end
  pinfo.cols.protocol = "DSP1"
  pinfo.cols.info = info
end

-- A TCP stream: messages behind their lengths (section 5).
local PORTS = {[18620] = true, [18621] = true, [18630] = true}
local function length_of(buffer, _, offset)
  local n = buffer(offset, 4):le_uint()
  if n < HEADER or n > MAX_MESSAGE then return 0x7fffffff end
  return 4 + n
end
local function one_of_tcp(buffer, pinfo, tree)
  -- Whatever port brought us here ("Decode As" too) is the worker's.
  message(buffer(4):tvb(), pinfo, tree, pinfo.src_port == pinfo.match_uint)
  return buffer:len()
end
function dsp1.dissector(buffer, pinfo, tree)
  if buffer:len() < 4 then
    pinfo.desegment_len, pinfo.desegment_offset = DESEGMENT_ONE_MORE_SEGMENT, 0
    return
  end
  dissect_tcp_pdus(buffer, tree, 4, length_of, one_of_tcp)
  return buffer:len()
end
for port in pairs(PORTS) do DissectorTable.get("tcp.port"):add(port, dsp1) end

-- A recording: one message a packet; inbound is the worker's.
local recording = Proto("dsp1_recording", "DSP1 flight recording")
local flags = Field.new("frame.packet_flags_direction")
function recording.dissector(buffer, pinfo, tree)
  local direction = flags()
  if buffer:len() == 0 then
    pinfo.cols.protocol, pinfo.cols.info = "DSP1", "(no answer)"
    return 0
  end
  message(buffer, pinfo, tree, direction ~= nil and direction.value == 1)
  return buffer:len()
end
DissectorTable.get("wtap_encap"):add(wtap.USER0, recording)
