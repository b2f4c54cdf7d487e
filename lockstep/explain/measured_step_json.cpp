// A MeasuredStep as JSON. Files come from other machines and other versions: whatever is read is
// checked, so that a replay never meets an instruction that waits for itself or a time that is no
// number.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/json_depth.h"
#include "lockstep/explain/measured_step.h"

namespace lockstep {
namespace {

using StepJson = nlohmann::ordered_json;

constexpr const char* kStepFormat = "lockstep measured step";
constexpr int kStepVersion = 1;

StepJson as_json(const PerPiece& piece) {
  return {{"fixed", piece.fixed}, {"per_sample", piece.per_sample}};
}

StepJson as_json(const MeasuredInstruction& instruction) {
  StepJson json = {{"name", instruction.name},
                   {"op", instruction.op},
                   {"stream", instruction.stream},
                   {"after", instruction.after},
                   {"seconds", as_json(instruction.seconds)},
                   {"flops", instruction.flops},
                   {"bytes", instruction.bytes}};
  if (instruction.sliced > 0) json["sliced"] = instruction.sliced;
  if (instruction.collective.empty()) return json;
  json["collective"] = instruction.collective;
  json["wire_bytes"] = instruction.wire_bytes;
  json["carries"] = StepJson::array();
  for (const CarriedValue& value : instruction.carries) {
    json["carries"].push_back({value.bytes, value.after});
  }
  return json;
}

StepJson as_json(const MemoryOptions& options) {
  return {{"accumulate", options.accumulate},
          {"recompute", options.recompute.str()},
          {"shard", options.shard},
          {"gather_bytes", options.gather_bytes},
          {"offload", options.offload == Offload::Optimizer ? "optimizer" : "none"},
          {"gradients", !options.gradients                  ? "float32"
                        : *options.gradients == DType::BF16 ? "bfloat16"
                                                            : "float16"}};
}

// Reads members of an object, and names the one that is wrong.
class StepReader {
 public:
  StepReader(const StepJson& json, std::string_view where, std::string path)
      : json_(json), where_(where), path_(std::move(path)) {
    expect(json.is_object(), "", "is not an object");
  }

  void expect(bool condition, const std::string& key, const std::string& what) const {
    if (condition) return;
    const std::string at = path_ + (path_.empty() || key.empty() ? "" : ".") + key;
    fail<DataError>("{}: {} {}; it is no measured step that this version can read", where_,
                    at.empty() ? "the text" : at, what);
  }

  std::string text(const char* key) const {
    if (!json_.contains(key)) return "";
    expect(json_[key].is_string(), key, "is not text");
    return json_[key].get<std::string>();
  }
  // A finite number that is not negative.
  double number(const char* key) const {
    if (!json_.contains(key)) return 0;
    return number_of(json_[key], key);
  }
  std::int64_t whole(const char* key) const {
    const double value = number(key);
    expect(value == std::floor(value) && value < 9e15, key, "is not a whole number");
    return static_cast<std::int64_t>(value);
  }
  double number_of(const StepJson& value, const std::string& key) const {
    expect(value.is_number(), key, "is not a number");
    const double number = value.get<double>();
    expect(std::isfinite(number) && number >= 0, key, fmt::format("is {}", number));
    return number;
  }
  PerPiece piece(const char* key) const {
    if (!json_.contains(key)) return {};
    const StepReader inner = object(json_[key], key);
    return {.fixed = inner.number("fixed"), .per_sample = inner.number("per_sample")};
  }
  StepReader object(const StepJson& json, const std::string& key) const {
    return {json, where_, path_ + (path_.empty() ? "" : ".") + key};
  }
  // Calls f(element, its name) for each element of a list; a missing list is empty.
  template <class F>
  void each(const char* key, F&& f) const {
    if (!json_.contains(key)) return;
    expect(json_[key].is_array(), key, "is not a list");
    std::size_t i = 0;
    for (const StepJson& element : json_[key]) f(element, fmt::format("{}[{}]", key, i++));
  }

 private:
  const StepJson& json_;
  std::string_view where_;
  std::string path_;
};

// An index of an instruction that comes before this one, or -1 where that is allowed.
int earlier(const StepReader& reader, const StepJson& json, const std::string& key,
            std::size_t index, int least) {
  reader.expect(json.is_number_integer(), key, "is not a whole number");
  const auto value = json.get<std::int64_t>();
  reader.expect(value >= least && value < static_cast<std::int64_t>(index), key,
                fmt::format("is {}, and the instruction is number {}: it can only wait for those "
                            "before it",
                            value, index));
  return static_cast<int>(value);
}

MeasuredInstruction read_instruction(const StepReader& reader, std::size_t index) {
  MeasuredInstruction made;
  made.name = reader.text("name");
  made.op = reader.text("op");
  const std::int64_t stream = reader.whole("stream");
  reader.expect(stream == kComputeStream || stream == kCommunicationStream, "stream",
                fmt::format("is {}, not 0 or 1", stream));
  made.stream = static_cast<int>(stream);
  reader.each("after", [&](const StepJson& json, const std::string& key) {
    made.after.push_back(earlier(reader, json, key, index, 0));
  });
  made.seconds = reader.piece("seconds");
  made.flops = reader.number("flops");
  made.bytes = reader.number("bytes");
  made.sliced = reader.number("sliced");
  reader.expect(made.sliced <= 1, "sliced", fmt::format("is {}, and at most 1", made.sliced));
  made.collective = reader.text("collective");
  constexpr std::string_view kKnown[] = {"", "all_reduce", "reduce_scatter", "all_gather",
                                         "broadcast"};
  reader.expect(std::ranges::count(kKnown, made.collective) > 0, "collective",
                fmt::format("is {}, which there is not", made.collective));
  made.wire_bytes = reader.whole("wire_bytes");
  reader.each("carries", [&](const StepJson& json, const std::string& key) {
    reader.expect(json.is_array() && json.size() == 2, key,
                  "is not a pair of bytes and instruction");
    made.carries.push_back({.bytes = static_cast<std::int64_t>(reader.number_of(json[0], key)),
                            .after = earlier(reader, json[1], key, index, -1)});
  });
  return made;
}

MemoryOptions read_options(const StepReader& reader) {
  MemoryOptions options;
  options.accumulate = std::max<std::int64_t>(1, reader.whole("accumulate"));
  options.shard = static_cast<int>(reader.whole("shard"));
  options.gather_bytes = static_cast<std::size_t>(reader.whole("gather_bytes"));
  try {
    options.recompute = Recompute(reader.text("recompute"));
    options.offload = offload_by_name("offload", reader.text("offload"));
    options.gradients = gradient_type_by_name("gradients", reader.text("gradients"));
    expect_valid("options", options);
  } catch (const UsageError& error) {
    reader.expect(false, "", fmt::format("cannot be read ({})", error.what()));
  }
  return options;
}

int read_ranks(const StepReader& reader, const char* key, int least) {
  constexpr std::int64_t kMostRanks = 1'000'000'000;
  const std::int64_t ranks = reader.whole(key);
  reader.expect(ranks >= least && ranks <= kMostRanks, key, fmt::format("is {}", ranks));
  return static_cast<int>(ranks);
}

}  // namespace

std::string to_json(const MeasuredStep& step) {
  StepJson json = {{"format", kStepFormat},
                   {"format_version", kStepVersion},
                   {"model", step.model},
                   {"device", step.device},
                   {"hardware", step.hardware},
                   {"precision", step.precision},
                   {"batch", step.batch},
                   {"host_seconds", as_json(step.host_seconds)},
                   {"memory", as_json(step.memory)},
                   {"options", as_json(step.options)},
                   {"ranks", step.ranks},
                   {"meet_seconds", step.meet_seconds},
                   {"wire_s_per_byte", step.wire_s_per_byte},
                   {"jitter", step.jitter}};
  json["memory_by_ranks"] = StepJson::array();
  for (const RankedMemory& each : step.memory_by_ranks) {
    json["memory_by_ranks"].push_back({{"ranks", each.ranks}, {"bytes", as_json(each.bytes)}});
  }
  json["side_by_side"] = StepJson::array();
  for (const SideBySide& each : step.side_by_side) {
    json["side_by_side"].push_back({{"copies", each.copies}, {"slowdown", each.slowdown}});
  }
  json["host_collectives"] = StepJson::array();
  for (const HostCollective& each : step.host_collectives) {
    json["host_collectives"].push_back({{"op", each.op},
                                        {"ranks", each.ranks},
                                        {"seconds", each.seconds},
                                        {"seconds_per_byte", each.seconds_per_byte}});
  }
  json["instructions"] = StepJson::array();
  for (const MeasuredInstruction& each : step.instructions) {
    json["instructions"].push_back(as_json(each));
  }
  return json.dump(1) + "\n";
}

MeasuredStep measured_step_from_json(std::string_view text, std::string_view where) {
  if (nests_too_deep(text)) fail<DataError>("{}: nests too deeply to be a measured step", where);
  const StepJson json = StepJson::parse(text, nullptr, false);
  if (json.is_discarded()) {
    fail<DataError>("{}: is not JSON, or damaged; delete it, and the step is measured again",
                    where);
  }
  const StepReader reader(json, where, "");
  reader.expect(reader.text("format") == kStepFormat, "format",
                fmt::format("is '{}', not '{}'", reader.text("format"), kStepFormat));
  const std::int64_t version = reader.whole("format_version");
  reader.expect(version == kStepVersion, "format_version",
                fmt::format("is {}, not {}", version, kStepVersion));
  MeasuredStep step;
  step.model = reader.text("model");
  step.device = reader.text("device");
  step.hardware = reader.text("hardware");
  step.precision = reader.text("precision");
  step.batch = reader.whole("batch");
  reader.expect(step.batch > 0, "batch", "is not positive");
  step.host_seconds = reader.piece("host_seconds");
  step.memory = reader.piece("memory");
  if (json.contains("options"))
    step.options = read_options(reader.object(json["options"], "options"));
  if (json.contains("ranks")) step.ranks = read_ranks(reader, "ranks", 2);
  reader.each("memory_by_ranks", [&](const StepJson& each, const std::string& key) {
    const StepReader inner = reader.object(each, key);
    step.memory_by_ranks.push_back(
        {.ranks = read_ranks(inner, "ranks", 1), .bytes = inner.piece("bytes")});
  });
  std::ranges::sort(step.memory_by_ranks, {}, &RankedMemory::ranks);
  const auto twice = [](const RankedMemory& a, const RankedMemory& b) {
    return a.ranks == b.ranks;
  };
  auto& memory = step.memory_by_ranks;
  memory.erase(std::unique(memory.begin(), memory.end(), twice), memory.end());
  step.meet_seconds = reader.number("meet_seconds");
  step.wire_s_per_byte = reader.number("wire_s_per_byte");
  reader.each("jitter", [&](const StepJson& each, const std::string& key) {
    step.jitter.push_back(reader.number_of(each, key));
  });
  std::ranges::sort(step.jitter);
  reader.each("side_by_side", [&](const StepJson& each, const std::string& key) {
    const StepReader inner = reader.object(each, key);
    step.side_by_side.push_back(
        {.copies = static_cast<int>(inner.whole("copies")), .slowdown = inner.number("slowdown")});
  });
  reader.each("host_collectives", [&](const StepJson& each, const std::string& key) {
    const StepReader inner = reader.object(each, key);
    HostCollective& made = step.host_collectives.emplace_back();
    made.ranks = static_cast<int>(inner.whole("ranks"));
    made.seconds = inner.number("seconds");
    made.seconds_per_byte = inner.number("seconds_per_byte");
    if (!inner.text("op").empty()) made.op = inner.text("op");
  });
  reader.each("instructions", [&](const StepJson& each, const std::string& key) {
    step.instructions.push_back(
        read_instruction(reader.object(each, key), step.instructions.size()));
  });
  reader.expect(!step.instructions.empty(), "instructions", "is empty");
  return step;
}

}  // namespace lockstep
