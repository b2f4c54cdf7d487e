// How elements are added: T is the type in memory, Sum the type of the accumulator.
#pragma once

#include <cstdint>

#include "lockstep/base/half.h"
#include "lockstep/base/vectorized.h"

namespace lockstep {

// f32, f64, and integers as unsigned numbers, which wrap around.
template <class Number>
struct PlainElement {
  using T = Number;
  using Sum = Number;
  static LOCKSTEP_INLINE Sum widen(T value) { return value; }
  static LOCKSTEP_INLINE T narrow(Sum sum) { return sum; }
};

// The 16-bit types (base/half.h) are added as floats.
template <class Format>
struct SmallElement {
  using T = std::uint16_t;
  using Sum = float;
  static LOCKSTEP_INLINE Sum widen(T value) { return Format::widen(value); }
  static LOCKSTEP_INLINE T narrow(Sum sum) { return Format::round(sum); }
};

}  // namespace lockstep
