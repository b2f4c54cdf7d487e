#include "lockstep/nn/regularizer.h"

#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/reduce.h"

namespace lockstep {

Regularizer L1(double l1) {
  return [l1](Value w) { return reduce_sum(abs(w)) * l1; };
}

Regularizer L2(double l2) {
  return [l2](Value w) { return reduce_sum(square(w)) * l2; };
}

Regularizer L1L2(L1L2Options options) {
  return [options](Value w) { return L1(options.l1)(w) + L2(options.l2)(w); };
}

}  // namespace lockstep
