// Variable: state that outlives a step, known by identity. It describes; the memory lies in the
// executors' State, one for each replica.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/base/dtype.h"
#include "lockstep/base/shape.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// What the value of a variable is where every replica has its own: the same on all, or their sum
// (metrics).
enum class Aggregation { Mirrored, Sum };

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
  Aggregation aggregation = Aggregation::Mirrored;
  // Fills a fresh tensor of the variable's dtype and shape; absent: zeros. `seed` is the model's.
  std::function<void(Tensor& target, std::uint64_t seed)> initializer;
  // The first model that has it; none for variables of a step of the user's own.
  mutable std::weak_ptr<VariableOwner> owner = {};
};

using VariableRef = std::shared_ptr<const Variable>;

}  // namespace lockstep
