// Types that a network has little of: integers and doubles, in counts, places and metrics. Kernels
// for them are few and general, as each one more is compiled in every build.
#pragma once

#include <type_traits>

#include "lockstep/base/dtype.h"

namespace lockstep {

template <class T>
constexpr bool kRare = std::is_integral_v<T> || std::is_same_v<T, double>;

inline bool is_rare(DType dtype) {
  return dtype != DType::F32 && dtype != DType::F16 && dtype != DType::BF16;
}

}  // namespace lockstep
