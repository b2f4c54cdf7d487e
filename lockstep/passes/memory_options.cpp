#include "lockstep/passes/memory_options.h"

#include <charconv>
#include <cmath>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr double kMostBytes = 1e18;

struct ByteUnit {
  std::string_view name;
  double bytes;
};
constexpr ByteUnit kByteUnits[] = {{"KiB", 1024.0},
                                   {"MiB", 1024.0 * 1024},
                                   {"GiB", 1024.0 * 1024 * 1024},
                                   {"TiB", 1024.0 * 1024 * 1024 * 1024},
                                   {"kB", 1e3},
                                   {"KB", 1e3},
                                   {"MB", 1e6},
                                   {"GB", 1e9},
                                   {"TB", 1e12},
                                   {"B", 1}};

}  // namespace

std::size_t bytes_by_text(std::string_view caller, std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  double times = unit.empty() ? 1 : 0;
  for (const ByteUnit& each : kByteUnits) {
    if (unit == each.name) times = each.bytes;
  }
  const double bytes = number * times;
  require(error == std::errc() && bytes >= 1 && bytes <= kMostBytes,
          "{}: {} is no number of bytes: write 512MiB, 1.5GiB or 16GB", caller, text);
  return static_cast<std::size_t>(std::llround(bytes));
}

Recompute::Recompute(std::string_view text) {
  if (text.empty() || text == "none") return;
  if (text == "blocks") {
    kind = Kind::Blocks;
  } else if (text == "auto") {
    kind = Kind::Auto;
  } else {
    require(text.front() >= '0' && text.front() <= '9',
            "[recompute] {} is not one of none, blocks, auto, or a budget such as 2GiB", text);
    kind = Kind::Budget;
    budget_bytes = bytes_by_text("[recompute]", text);
  }
}

std::string Recompute::str() const {
  switch (kind) {
    case Kind::None:
      return "none";
    case Kind::Blocks:
      return "blocks";
    case Kind::Auto:
      return "auto";
    case Kind::Budget:
      return fmt::format("{}B", budget_bytes);
  }
  return "";
}

Offload offload_by_name(std::string_view caller, std::string_view name) {
  if (name.empty() || name == "none") return Offload::None;
  require(name == "optimizer", "{}: {} cannot be kept on the host: write none or optimizer", caller,
          name);
  return Offload::Optimizer;
}

std::optional<DType> gradient_type_by_name(std::string_view caller, std::string_view name) {
  if (name.empty() || name == "float32") return std::nullopt;
  if (name == "bfloat16") return DType::BF16;
  require(name == "float16",
          "{}: gradients cannot be communicated as {}: write float32, bfloat16 "
          "or float16",
          caller, name);
  return DType::F16;
}

void expect_valid(std::string_view caller, const MemoryOptions& options) {
  constexpr std::int64_t kMostMicroBatches = 1'000'000;
  constexpr int kMostSharded = 3;
  require(options.accumulate >= 0 && options.accumulate <= kMostMicroBatches,
          "{}: a batch cannot be accumulated over {} micro-batches: write 1 to {}, or 0 for as few "
          "as fit into memory",
          caller, options.accumulate, kMostMicroBatches);
  require(options.shard >= 0 && options.shard <= kMostSharded,
          "{}: shard is {}: write 0 (nothing), 1 (slots), 2 (and gradients) or 3 (and parameters)",
          caller, options.shard);
}

}  // namespace lockstep
