// What our own kernels add to the libraries' matrix products and convolutions: bias and activation,
// and the gradient of the bias. All are bound by memory bandwidth and read their input once, in
// 16-byte vectors where alignment allows; the order of sums depends only on their sizes.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/base/dtype.h"

namespace lockstep {

enum class CudaActivation {
  Linear,
  Relu,
  Relu6,
  LeakyRelu,
  Gelu,
  GeluTanh,
  Silu,
  Tanh,
  Sigmoid,
  Softplus
};

// "" and "linear" change nothing; UsageError for an unknown name.
CudaActivation cuda_activation(std::string_view kind);

// y = f(y + bias), in place, over (rows, columns); formulas as in activations.h.
struct BiasActivation {
  DType dtype = DType::F32;       // of y
  bool biased = false;            // if false, bias is not read
  DType bias_dtype = DType::F32;  // y's, or f32
  CudaActivation activation = CudaActivation::Linear;
  float alpha = 0.0f;  // slope of leaky_relu
  std::int64_t rows = 0;
  std::int64_t columns = 0;

  bool changes_something() const {
    return (biased || activation != CudaActivation::Linear) && rows > 0 && columns > 0;
  }
  void run(void* y, const void* bias, cudaStream_t stream) const;
};

// result[j] = sum over i of x[i, j], x (rows, columns).
struct ColumnSum {
  DType dtype = DType::F32;
  DType result_dtype = DType::F32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;

  std::size_t workspace_bytes() const;
  void run(const void* x, void* result, void* workspace, cudaStream_t stream) const;

 private:
  std::int64_t chunks() const;
};

}  // namespace lockstep
