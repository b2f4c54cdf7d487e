// What the reference kernels of floating-point ops share.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/base/error.h"
#include "lockstep/base/half.h"
#include "lockstep/base/vectorized.h"
#include "lockstep/kernels/kernel.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

inline bool is_f32_or_f64(DType dtype) {
  return dtype == DType::F32 || dtype == DType::F64;
}

// Row-major, with input 0 in f32 or f64.
inline bool supports_floating(const KernelCall& call) {
  return call.row_major() && is_f32_or_f64(call.in_dtype(0));
}

// Calls make(T{}) with the C++ type of input 0.
template <class F>
std::unique_ptr<Kernel> make_floating(const KernelCall& call, F&& make) {
  if (call.in_dtype(0) == DType::F64) return make(double{});
  return make(float{});
}

// Like dispatch, but without the 16-bit floats, which half.cpp computes in f32. f makes a kernel.
template <class F>
std::unique_ptr<Kernel> dispatch_wide(DType dtype, F&& f) {
  return dispatch(dtype, [&](auto zero) -> std::unique_ptr<Kernel> {
    if constexpr (is_small_float_v<decltype(zero)>) {
      fail<InternalError>("this kernel does not compute in {}", name_of(dtype));
    } else {
      return f(zero);
    }
  });
}

// The grain for parallel_for that is worth a thread, if an iteration costs `work` operations.
inline std::int64_t grain_for(std::int64_t work) {
  return 1 + 32768 / (work + 1);
}

}  // namespace lockstep
