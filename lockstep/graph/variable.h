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

struct Variable {
  std::string name;  // unique in a model: "dense_1/kernel"
  DType dtype = DType::F32;
  Shape shape;
  bool trainable = true;
  // Fills a fresh tensor of the variable's dtype and shape; absent: zeros. `seed` is the model's.
  std::function<void(Tensor& target, std::uint64_t seed)> initializer;
};

using VariableRef = std::shared_ptr<const Variable>;

}  // namespace lockstep
