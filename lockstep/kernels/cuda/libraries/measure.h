// How the libraries' algorithms are measured while planning: on scratch memory filled with random
// numbers (a GPU runs faster on zeros, which draw less power), timed by events.
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

// Temporary GPU memory, freed by the destructor.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Null if there was not enough memory.
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
};

// Uniform numbers in [-1, 1) for f32, f16 and bf16, the same for the same seed.
void fill_random(std::byte* data, DType dtype, std::int64_t count, std::uint32_t seed,
                 cudaStream_t stream);

// How many runs are measured at once: two on a device that shares its GPU with others, because
// there a run leaves the resources it does not use to them; otherwise one.
std::size_t lanes_to_measure(const CudaContext& context);

// Times work on its own streams, one per lane.
class Stopwatch {
 public:
  explicit Stopwatch(std::size_t lanes = 1);
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  // What is measured; false if it cannot run. Lanes run concurrently, so each needs its own memory.
  using Run = std::function<bool(cudaStream_t stream, std::size_t lane)>;

  cudaStream_t stream() const { return streams_.front(); }  // the first lane's
  // The median of five runs in milliseconds, after two warm-up runs; the time of the second warm-up
  // run if that is more than three times `best`. Nothing if `run` returns false.
  std::optional<float> median(const Run& run, float best);
  // The same for work of a few microseconds, which a GPU completes faster than the host issues it:
  // consecutive runs are recorded first, as the instructions of a plan are. Longer work is measured
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
  cudaEvent_t between_ = nullptr;  // orders lanes
};

}  // namespace lockstep
