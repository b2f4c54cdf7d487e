// Any bytes give tensors that can be read to the last element, or a DataError.
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>

#include "lockstep/tensor/safetensors.h"

namespace {

void read_all(const lockstep::Tensor& tensor) {
  using lockstep::DType;
  volatile double sum = 0;
  if (tensor.dtype() == DType::F16 || tensor.dtype() == DType::BF16) {
    const auto* halves = reinterpret_cast<const std::uint16_t*>(tensor.raw());
    sum = std::accumulate(halves, halves + tensor.elements(), 0.0);
  } else {
    lockstep::dispatch(tensor.dtype(), [&](auto zero) {
      const auto values = tensor.values<decltype(zero)>();
      sum = std::accumulate(values.begin(), values.end(), 0.0);
    });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const lockstep::TensorFile file =
        lockstep::parse_safetensors(std::as_bytes(std::span(data, size)), "input");
    for (const auto& [name, tensor] : file.tensors) read_all(tensor);
  } catch (const lockstep::DataError&) {
  }
  return 0;
}
