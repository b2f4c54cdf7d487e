// Conversion between element types.
#pragma once

#include <limits>
#include <type_traits>

#include "lockstep/base/half.h"

namespace lockstep {

// Conversion that is defined for every value: out-of-range numbers are clamped, NaN becomes 0 as an
// integer and true as a bool.
template <class To, class From>
To convert(From x) {
  if constexpr (is_small_float_v<From>) {
    return convert<To>(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, bool>) {
    return x != From{0};
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    if (x != x) return To{0};
    if (x <= static_cast<From>(std::numeric_limits<To>::min()))
      return std::numeric_limits<To>::min();
    if (x >= static_cast<From>(std::numeric_limits<To>::max()))
      return std::numeric_limits<To>::max();
    return static_cast<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

}  // namespace lockstep
