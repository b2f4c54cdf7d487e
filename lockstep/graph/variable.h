// Variable: state that outlives a step, identified by its address. It is only a description; the
// memory is in the executors' State, one per replica.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/base/dtype.h"
#include "lockstep/base/shape.h"
#include "lockstep/graph/placement.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Who knows where the memory of a variable is: a model.
class VariableOwner {
 public:
  virtual ~VariableOwner() = default;
};

struct Variable {
  std::string name;  // unique in a model: "dense_1/kernel"
  DType dtype = DType::F32;
  Shape shape;
  bool trainable = true;
  // How it lies on the ranks. Replicated: the same bits on all. Local: every rank has its own, and
  // what is read is their sum (metrics).
  Placements placement = {};
  // Fills a fresh tensor of the variable's dtype and shape; absent: zeros. `seed` is the model's.
  std::function<void(Tensor& target, std::uint64_t seed)> initializer;
  // The first model that has it; none for variables of a user-defined step.
  mutable std::weak_ptr<VariableOwner> owner = {};
};

using VariableRef = std::shared_ptr<const Variable>;

}  // namespace lockstep
