#include "lockstep/data/iterator.h"

namespace lockstep {

std::optional<std::int64_t> Iterator::next_into(std::span<Tensor> destination) {
  const std::optional<Element> element = next();
  if (!element) return std::nullopt;
  return copy_into(*element, destination);
}

std::int64_t copy_into(const Element& element, std::span<Tensor> destination) {
  require(!element.empty() && element.size() == destination.size(),
          "[next_into] an element of {} components cannot be written to {} tensors", element.size(),
          destination.size());
  for (std::size_t i = 0; i < element.size(); ++i) {
    const Shape& from = element[i].shape();
    const Shape& to = destination[i].shape();
    require(from.rank() > 0 && from[0] == element[0].shape()[0],
            "[next_into] component {} has shape {}, component 0 {}: the element is not a batch; "
            "batch the samples with .batch(32)",
            i, from, element[0].shape());
    require(element[i].dtype() == destination[i].dtype() && to.rank() == from.rank() &&
                to[0] >= from[0] && to.with(0, from[0]) == from,
            "[next_into] component {}, {} {}, does not fit into {} {}", i,
            name_of(element[i].dtype()), from, name_of(destination[i].dtype()), to);
  }
  for (std::size_t i = 0; i < element.size(); ++i) {
    if (element[i].bytes() == 0) continue;
    std::memcpy(destination[i].raw(), element[i].raw(), element[i].bytes());
  }
  return element[0].shape()[0];
}

}  // namespace lockstep
