// Element: the tensors of one sample or batch, as an iterator returns them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/worker_share.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Identifies a sample: its number in the source, and the pass over the source that read it. Random
// augmentation is keyed by both, so it depends neither on the order of the samples nor on which
// worker reads them.
struct SampleId {
  std::uint64_t epoch = 0;
  std::uint64_t number = 0;
  // The file and record it was read from, for messages; null if it came from no file.
  std::shared_ptr<const std::string> file = {};
  std::int64_t record = 0;
  bool operator==(const SampleId& other) const {
    return epoch == other.epoch && number == other.number;
  }
};

// "train.tfrecord: record 17", or "sample 17 of epoch 0" if it came from no file.
std::string describe(const SampleId& sample);

struct Element : std::vector<Tensor> {
  using std::vector<Tensor>::vector;
  Element() = default;
  Element(std::vector<Tensor> components) : std::vector<Tensor>(std::move(components)) {}

  SampleId sample;                       // for a batch, that of its first row
  std::optional<BatchPiece> piece = {};  // set if it is a worker's piece of a global batch
};

// Structured bindings for elements of two tensors: auto& [x, y] = element. UsageError if an element
// does not have two.
namespace detail {
inline void expect_two(const Element& element) {
  require(
      element.size() == 2,
      "[element] [x, y] takes two tensors, but the element has {}; index it instead: element[0]",
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
