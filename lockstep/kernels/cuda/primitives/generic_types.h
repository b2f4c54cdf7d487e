// Generic types: integers and doubles, which networks use little, in counts, indices and metrics.
// They get few, generic kernels, because every further instance costs compile time.
#pragma once

#include <type_traits>

#include "lockstep/base/dtype.h"

namespace lockstep {

template <class T>
constexpr bool kGenericType = std::is_integral_v<T> || std::is_same_v<T, double>;

inline bool is_generic_type(DType dtype) {
  return dtype != DType::F32 && dtype != DType::F16 && dtype != DType::BF16;
}

}  // namespace lockstep
