// Any bytes, compressed or not, give a tensor that can be read to the last element, or a DataError.
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>

#include "lockstep/data/sources/idx.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const lockstep::Tensor tensor =
        lockstep::parse_idx(std::as_bytes(std::span(data, size)), "input");
    lockstep::dispatch(tensor.dtype(), [&](auto zero) {
      const auto values = tensor.values<decltype(zero)>();
      volatile double sum = std::accumulate(values.begin(), values.end(), 0.0);
      (void)sum;
    });
  } catch (const lockstep::DataError&) {
  }
  return 0;
}
