// A variable for tests with a name and a shape, which is zero until it is written.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "lockstep/graph/variable.h"

namespace lockstep {

inline VariableRef zero_variable(std::string name, Shape shape, DType dtype = DType::F32) {
  auto variable = std::make_shared<Variable>();
  variable->name = std::move(name);
  variable->shape = std::move(shape);
  variable->dtype = dtype;
  return variable;
}

}  // namespace lockstep
