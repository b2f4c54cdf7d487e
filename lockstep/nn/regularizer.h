// Regularisers: a variable → a loss (scalar) that is added to the model's, once per step.
#pragma once

#include <functional>

#include "lockstep/graph/graph.h"

namespace lockstep {

using Regularizer = std::function<Value(Value)>;

struct L1L2Options {
  double l1 = 0.01;
  double l2 = 0.01;
};

Regularizer L1(double l1 = 0.01);  // l1 * sum(|w|)
Regularizer L2(double l2 = 0.01);  // l2 * sum(w²)
Regularizer L1L2(L1L2Options options = {});

}  // namespace lockstep
