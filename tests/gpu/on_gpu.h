// Copies tensors to the GPU and back, for tests that call kernels directly.
#pragma once

#include <algorithm>

#include "gpu/gpu.h"
#include "kernels/op_case.h"

namespace lockstep {

// Random numbers that a 16-bit dtype holds exactly.
inline Tensor drawn(const Shape& shape, DType dtype, std::uint64_t stream) {
  Tensor tensor = Tensor::of(std::vector<float>(static_cast<std::size_t>(shape.elements())), shape);
  fill(tensor, {}, 7, stream);
  return tensor.cast(dtype).cast(DType::F32);
}

// (kh, kw, in, o) as (o, kh, kw, in), and back.
inline Tensor outputs_first(const Tensor& filter) {
  const auto from = filter.values<float>();
  const auto outputs = static_cast<std::size_t>(filter.shape()[3]);
  const std::size_t taps = from.size() / outputs;
  std::vector<float> to(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i % outputs * taps + i / outputs] = from[i];
  return Tensor::of(to, filter.shape());
}
inline Tensor outputs_last(const Tensor& filter) {
  const auto from = filter.values<float>();
  const auto outputs = static_cast<std::size_t>(filter.shape()[3]);
  const std::size_t taps = from.size() / outputs;
  std::vector<float> to(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = from[i % outputs * taps + i / outputs];
  return Tensor::of(to, filter.shape());
}

inline std::shared_ptr<Buffer> on_gpu(const Tensor& tensor, DType dtype) {
  const Tensor rounded = tensor.cast(dtype);
  auto buffer = gpu().allocate(std::max<std::size_t>(rounded.bytes(), 1));
  gpu().copy(buffer->data(), rounded.raw(), rounded.bytes());
  return buffer;
}

// A copy of a buffer on the GPU, as f32.
inline Tensor from_gpu(const Buffer& buffer, DType dtype, const Shape& shape) {
  const auto count = static_cast<std::size_t>(shape.elements());
  Tensor tensor = Tensor::of(std::vector<float>(count), shape).cast(dtype);
  gpu().copy(tensor.raw(), buffer.data(), tensor.bytes());
  return tensor.cast(DType::F32);
}

}  // namespace lockstep
