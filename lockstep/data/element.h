// Element: what an iterator hands out, the components of one sample or batch.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Which sample an element is: its number in its source, and the pass over the source in which it
// was read. Random augmentation is keyed by both, and so depends neither on the order in which
// samples come nor on who reads them.
struct SampleId {
  std::uint64_t epoch = 0;
  std::uint64_t number = 0;
  bool operator==(const SampleId&) const = default;
};

struct Element : std::vector<Tensor> {
  using std::vector<Tensor>::vector;
  Element() = default;
  Element(std::vector<Tensor> components) : std::vector<Tensor>(std::move(components)) {}

  SampleId sample;  // of a batch: of its first row
};

inline std::size_t bytes_of(const Element& element) {
  std::size_t bytes = 0;
  for (const Tensor& component : element) bytes += component.bytes();
  return bytes;
}

}  // namespace lockstep
