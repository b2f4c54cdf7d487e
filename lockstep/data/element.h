// Element: what an iterator hands out, the components of one sample or batch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Which sample an element is: its number in its source, and the pass over the source in which it
// was read. Random augmentation is keyed by both, and so depends neither on the order in which
// samples come nor on who reads them.
struct SampleId {
  std::uint64_t epoch = 0;
  std::uint64_t number = 0;
  // Where it was read, for messages; null where it came from no file.
  std::shared_ptr<const std::string> file = {};
  std::int64_t record = 0;
  bool operator==(const SampleId& other) const {
    return epoch == other.epoch && number == other.number;
  }
};

// "train.tfrecord: record 17", or "sample 17 of epoch 0" where it came from no file.
std::string describe(const SampleId& sample);

struct Element : std::vector<Tensor> {
  using std::vector<Tensor>::vector;
  Element() = default;
  Element(std::vector<Tensor> components) : std::vector<Tensor>(std::move(components)) {}

  SampleId sample;  // of a batch: of its first row
};

// The tensors of an element of two: auto& [x, y] = element; UsageError where it has not two.
namespace detail {
inline void expect_two(const Element& element) {
  require(element.size() == 2,
          "[element] [x, y] names two tensors, and the element has {}; take them by number: "
          "element[0]",
          element.size());
}
}  // namespace detail
template <std::size_t I>
Tensor& get(Element& element) {
  detail::expect_two(element);
  return element[I];
}
template <std::size_t I>
const Tensor& get(const Element& element) {
  detail::expect_two(element);
  return element[I];
}
template <std::size_t I>
Tensor&& get(Element&& element) {
  detail::expect_two(element);
  return std::move(element[I]);
}

inline std::size_t bytes_of(const Element& element) {
  std::size_t bytes = 0;
  for (const Tensor& component : element) bytes += component.bytes();
  return bytes;
}

}  // namespace lockstep

template <>
struct std::tuple_size<lockstep::Element> : std::integral_constant<std::size_t, 2> {};
template <std::size_t I>
struct std::tuple_element<I, lockstep::Element> {
  using type = lockstep::Tensor;
};
