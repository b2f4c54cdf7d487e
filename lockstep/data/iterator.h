// Iterator: runs a dataset once, and holds a position that can be saved and set.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

using Element = std::vector<Tensor>;

class Iterator {
 public:
  virtual ~Iterator() = default;
  // The next element; nothing at the end. Its tensors may be used until the next call.
  virtual std::optional<Element> next() = 0;
  // The position, epoch included, as bytes; exact for every transformation.
  virtual std::string save() const = 0;
  // Goes to a saved position; UsageError where it was saved by another kind of data set.
  virtual void restore(const std::string& position) = 0;
};

}  // namespace lockstep
