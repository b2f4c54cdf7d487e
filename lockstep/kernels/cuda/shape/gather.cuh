// What Gather and its gradient share: indices, and reporting those out of range.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/kernels/cuda/cuda.h"

namespace lockstep {

// Where a kernel reports an index outside its table.
struct FaultPlace {
  Fault* fault = nullptr;
  std::int64_t step = 0;

  explicit FaultPlace(const Binding& binding) : fault(binding.fault), step(binding.step) {}

  __device__ void report(std::int64_t index) const {
    if (fault == nullptr) return;
    fault->value = index;
    __threadfence_system();
    fault->step = step;
  }
};

// Calls f with a zero of the C++ type of an index dtype.
template <class F>
decltype(auto) dispatch_index(DType dtype, F&& f) {
  if (dtype == DType::I32) return f(std::int32_t{});
  if (dtype == DType::U8) return f(std::uint8_t{});
  return f(std::int64_t{});
}

inline std::int64_t row_elements(const Shape& table) {
  std::int64_t count = 1;
  for (int axis = 1; axis < table.rank(); ++axis) count *= table[axis];
  return count;
}

// A kernel over a table of so many rows.
class TableKernel final : public Kernel {
 public:
  TableKernel(std::int64_t rows, CudaFunction function)
      : rows_(rows), function_(std::move(function)) {}

  void bind(const Binding& binding) override { binding_ = binding; }
  void run(Stream& stream) override { function_(binding_, cuda_stream(stream)); }
  std::string explain(std::int64_t value) const override {
    return fmt::format("index {} is outside a table of {} rows", value, rows_);
  }

 private:
  std::int64_t rows_;
  CudaFunction function_;
  Binding binding_;
};

}  // namespace lockstep
