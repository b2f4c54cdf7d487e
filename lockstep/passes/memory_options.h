// MemoryOptions: how a step trades time for memory. compile, functions and the program take them;
// the passes that do it follow from them (runtime/pass_list.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/dtype.h"

namespace lockstep {

// Which activations of the forward pass are computed again in the backward pass instead of being
// kept for it: none; those inside marked layers or, without marks, inside square-root segments
// ("blocks"); whatever makes the step fit into the memory that is there ("auto"); or whatever
// brings the step's peak down to a budget ("800MiB", "2GiB").
struct Recompute {
  enum class Kind : std::uint8_t { None, Blocks, Auto, Budget };

  Recompute() = default;
  Recompute(std::string_view text);  // NOLINT: a text says it. UsageError for any other
  Recompute(const char* text) : Recompute(std::string_view(text)) {}         // NOLINT
  Recompute(const std::string& text) : Recompute(std::string_view(text)) {}  // NOLINT

  std::string str() const;
  bool operator==(const Recompute&) const = default;

  Kind kind = Kind::None;
  std::size_t budget_bytes = 0;  // of the step's peak, with Budget
};

// What is kept in host memory instead of the device's, and moved beside the computation.
enum class Offload : std::uint8_t { None, Optimizer };

struct MemoryOptions {
  // Micro-batches that a replica's piece of the batch is divided into, one after another; their
  // gradients are added up and reduced once. 0: as few as fit into the device's memory.
  std::int64_t accumulate = 1;
  Recompute recompute = {};
  // What the ranks keep a slice of each, instead of all of it: 0 nothing, 1 the optimizer's slots,
  // 2 also reduced gradients, 3 also parameters (ZeRO 1 to 3).
  int shard = 0;
  // With shard 3, bytes of whole parameters that may be there at once: those in use, and those that
  // are gathered ahead. 0: twice the largest bucket.
  std::size_t gather_bytes = 0;
  Offload offload = Offload::None;
  // The 16-bit type that gradients are communicated in, with error feedback; none: as they are.
  std::optional<DType> gradients = {};

  bool operator==(const MemoryOptions&) const = default;
};

// Parsers for the options' texts; UsageError, beginning with `caller` and listing the choices.
Offload offload_by_name(std::string_view caller, std::string_view name);
// "float32", "bfloat16", "float16".
std::optional<DType> gradient_type_by_name(std::string_view caller, std::string_view name);
// UsageError if a number is out of range.
void expect_valid(std::string_view caller, const MemoryOptions& options);

// "512MiB", "1.5GiB", "16GB", "1000000": bytes. UsageError, beginning with `caller`, for others.
std::size_t bytes_by_text(std::string_view caller, std::string_view text);

}  // namespace lockstep
