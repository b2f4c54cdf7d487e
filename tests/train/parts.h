// The sum of the parts of an attribution.
#pragma once

#include "lockstep/train/history.h"

namespace lockstep::testing {

inline double sum_of(const Attribution& attribution) {
  double sum = 0;
  for (const auto& [name, share] : parts_of(attribution)) sum += share;
  return sum;
}

}  // namespace lockstep::testing
