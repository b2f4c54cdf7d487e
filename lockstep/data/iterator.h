// Iterator: runs a dataset once, and holds a position that can be saved and set.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
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
  // Goes to a saved position; UsageError where it was saved by another kind of data set, and the
  // iterator stays where it was.
  virtual void restore(const std::string& position) = 0;
  // The next batch, written to the beginnings of these tensors: component i to destination[i],
  // which has its dtype, its inner extents and rows for a whole batch; UsageError where it has not.
  // Returns how many rows were written; nothing at the end.
  virtual std::optional<std::int64_t> next_into(std::span<Tensor> destination);
};

// Writes an element to the beginnings of these tensors, as next_into does; returns its rows.
std::int64_t copy_into(const Element& element, std::span<Tensor> destination);

}  // namespace lockstep
