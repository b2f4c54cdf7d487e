// How the algorithms of libraries are measured at planning: on memory of their own, filled with
// random numbers (zeros draw less power, so a GPU runs faster on them), timed by events.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "lockstep/base/dtype.h"

namespace lockstep {

class CudaContext;  // cuda.h

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

// How many runs at a time tell what one takes: two on a device that shares its GPU with others,
// where a run leaves to the rest what it does not use; else one.
std::size_t lanes_to_measure(const CudaContext& context);

// Streams of its own, one a lane, and what times work on them.
class Stopwatch {
 public:
  explicit Stopwatch(std::size_t lanes = 1);
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  // What is measured. Lanes run at a time, and so each has memory of its own.
  using Run = std::function<bool(cudaStream_t stream, std::size_t lane)>;

  cudaStream_t stream() const { return streams_.front(); }  // the first lane's
  // The median of five runs in milliseconds, behind two that are not counted; the second of those
  // where it takes more than thrice `best`. Nothing where `run` says that it cannot.
  std::optional<float> median(const Run& run, float best);
  // The same for work of a few microseconds, which the host issues more slowly than a GPU does it:
  // of runs in a row that were recorded first, as the steps of a plan are. Longer work is measured
  // by `median`.
  std::optional<float> in_a_row(const Run& run, float best);

 private:
  std::optional<float> recorded(const Run& run);
  std::optional<float> once(const Run& run);
  std::optional<float> timed(const std::function<bool()>& issue);
  bool issue(const Run& run, int turns);

  std::vector<cudaStream_t> streams_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  cudaEvent_t between_ = nullptr;  // lanes
};

}  // namespace lockstep
