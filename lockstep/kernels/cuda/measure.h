// How the algorithms of libraries are measured at planning: on memory of their own, filled with
// random numbers (zeros draw less power, so a GPU runs faster on them), timed by events.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "lockstep/base/dtype.h"

namespace lockstep {

// A piece of the GPU's memory, given back when it goes.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Null where there was not enough.
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
};

// Uniform numbers in [-1, 1) for f32, f16 and bf16, the same for the same seed.
void fill_random(std::byte* data, DType dtype, std::int64_t count, std::uint32_t seed,
                 cudaStream_t stream);

// A stream of its own and what times work on it.
class Stopwatch {
 public:
  Stopwatch();
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  cudaStream_t stream() const { return stream_; }
  // The median of five runs in milliseconds, behind two that are not counted; the second of those
  // where it takes more than thrice `best`. Nothing where `run` says that it cannot.
  std::optional<float> median(const std::function<bool(cudaStream_t)>& run, float best);
  // The same for work of a few microseconds, which the host issues more slowly than a GPU does it:
  // of runs in a row that were recorded first, as the steps of a plan are. Longer work is measured
  // by `median`.
  std::optional<float> in_a_row(const std::function<bool(cudaStream_t)>& run, float best);

 private:
  std::optional<float> recorded(const std::function<bool(cudaStream_t)>& run);
  std::optional<float> once(const std::function<bool(cudaStream_t)>& run);

  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace lockstep
