// Ops that rearrange elements.
#pragma once

#include "lockstep/graph/graph.h"

namespace lockstep {

// One extent may be -1 and is inferred. A view, which costs nothing.
Value reshape(Value x, Ints shape);
inline Value reshape(Value x, const Shape& shape) {
  return reshape(x, Ints(shape.dims().begin(), shape.dims().end()));
}
inline Value reshape(Value x, std::initializer_list<std::int64_t> shape) {
  return reshape(x, Ints(shape));
}
// Output axis i is input axis permutation[i].
Value transpose(Value x, Ints permutation);
Value concat(std::span<const Value> values, int axis);
// Slices of these sizes along an axis; the sizes must add up to its extent.
std::vector<Value> split(Value x, Ints sizes, int axis);
// Elements [begin, begin + size) of every axis; a size of -1 means up to the end.
Value slice(Value x, Ints begin, Ints size);
// Adds `before` and `after` elements of `value` on each axis.
Value pad(Value x, Ints before, Ints after, double value = 0.0);
Value broadcast_to(Value x, const Shape& shape);
// (…) of integers → (…, depth) with 1 at the class and 0 elsewhere; out-of-range classes give
// zeros.
Value one_hot(Value indices, std::int64_t depth, DType dtype = DType::F32);
// Rows of a (rows, …) table for (…) integer indices: an embedding. An index outside the table is a
// DataError when the step runs.
Value gather(Value table, Value indices);
// Adds each row of dy to the row of a zero (rows, …) table that its index names.
Value gather_grad(Value dy, Value indices, std::int64_t rows);

}  // namespace lockstep
