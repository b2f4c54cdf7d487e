// What the elementwise ops compute, one functor per op, for the kernels of single nodes and of
// pointwise programs. Activations are in activations.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "lockstep/base/convert.h"

namespace lockstep {

// Integer arithmetic wraps around, as two's complement does; C++ leaves signed overflow undefined.
template <class T, class F>
T wrapping(T a, T b, F f) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::uint64_t;
    return static_cast<T>(f(static_cast<U>(a), static_cast<U>(b)));
  } else {
    return f(a, b);
  }
}

struct Plus {
  template <class T>
  T operator()(T a, T b) const {
    return wrapping(a, b, [](auto x, auto y) { return x + y; });
  }
};
struct Minus {
  template <class T>
  T operator()(T a, T b) const {
    return wrapping(a, b, [](auto x, auto y) { return x - y; });
  }
};
struct Times {
  template <class T>
  T operator()(T a, T b) const {
    return wrapping(a, b, [](auto x, auto y) { return x * y; });
  }
};
struct Over {
  template <class T>
  T operator()(T a, T b) const {
    return a / b;
  }
};
struct Power {
  template <class T>
  T operator()(T a, T b) const {
    return std::pow(a, b);
  }
};
// A NaN on either side propagates.
struct Larger {
  template <class T>
  T operator()(T a, T b) const {
    return (a > b) | (a != a) ? a : b;
  }
};
struct Smaller {
  template <class T>
  T operator()(T a, T b) const {
    return (a < b) | (a != a) ? a : b;
  }
};
struct IsEqual {
  template <class T>
  bool operator()(T a, T b) const {
    return a == b;
  }
};
struct IsNotEqual {
  template <class T>
  bool operator()(T a, T b) const {
    return a != b;
  }
};
struct IsLess {
  template <class T>
  bool operator()(T a, T b) const {
    return a < b;
  }
};
struct IsLessEqual {
  template <class T>
  bool operator()(T a, T b) const {
    return a <= b;
  }
};
struct IsGreater {
  template <class T>
  bool operator()(T a, T b) const {
    return a > b;
  }
};
struct IsGreaterEqual {
  template <class T>
  bool operator()(T a, T b) const {
    return a >= b;
  }
};
struct Both {
  bool operator()(bool a, bool b) const { return a & b; }
};
struct Any {
  bool operator()(bool a, bool b) const { return a | b; }
};
struct Not {
  bool operator()(bool x) const { return !x; }
};
struct Negative {
  template <class T>
  T operator()(T x) const {
    if constexpr (std::is_integral_v<T>) return Minus()(T{0}, x);
    return -x;
  }
};
struct Absolute {
  template <class T>
  T operator()(T x) const {
    if constexpr (std::is_floating_point_v<T>) return std::fabs(x);
    return x < T{0} ? Negative()(x) : x;
  }
};
struct Sign {
  template <class T>
  T operator()(T x) const {
    if constexpr (std::is_floating_point_v<T>) {
      if (x != x) return x;
    }
    return static_cast<T>((x > T{0}) - (x < T{0}));
  }
};
struct Exponential {
  template <class T>
  T operator()(T x) const {
    return std::exp(x);
  }
};
struct Logarithm {
  template <class T>
  T operator()(T x) const {
    return std::log(x);
  }
};
struct SquareRoot {
  template <class T>
  T operator()(T x) const {
    return std::sqrt(x);
  }
};
struct ReciprocalRoot {
  template <class T>
  T operator()(T x) const {
    return T{1} / std::sqrt(x);
  }
};
struct Squared {
  template <class T>
  T operator()(T x) const {
    return Times()(x, x);
  }
};

}  // namespace lockstep
