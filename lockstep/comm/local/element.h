// How elements are added up: T is what lies in memory, Sum what is added.
#pragma once

#include <bit>
#include <cstdint>

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

// The 16-bit kinds are widened exactly and rounded to the nearest, ties to even; what is too large
// becomes infinite and NaN stays one. Without branches, so that loops become vectors.
struct Bf16Element {
  using T = std::uint16_t;
  using Sum = float;
  static LOCKSTEP_INLINE Sum widen(T value) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
  }
  static LOCKSTEP_INLINE T narrow(Sum sum) {
    const auto bits = std::bit_cast<std::uint32_t>(sum);
    const std::uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
    const std::uint32_t quiet = bits >> 16 | 0x40u;
    return static_cast<T>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
  }
};

struct F16Element {
  using T = std::uint16_t;
  using Sum = float;
  // Exponent and fraction in their f32 places make a number that is 2^112 too small, subnormal ones
  // included.
  static LOCKSTEP_INLINE Sum widen(T value) {
    const std::uint32_t sign = (value & 0x8000u) << 16;
    const std::uint32_t size = (value & 0x7FFFu) << 13;
    const auto scaled = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) * 0x1p112F);
    const std::uint32_t special = size | 0x7F800000u;
    return std::bit_cast<float>(sign | (size >= 0x0F800000u ? special : scaled));
  }
  static LOCKSTEP_INLINE T narrow(Sum sum) {
    const auto bits = std::bit_cast<std::uint32_t>(sum);
    const std::uint32_t sign = bits >> 16 & 0x8000u;
    const std::uint32_t size = bits & 0x7FFFFFFFu;
    // A float adder rounds to the 2^-24 of f16's subnormal numbers.
    const float small = std::bit_cast<float>(size) + 0.5F;
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(small) - 0x3F000000u;
    const std::uint32_t normal = (size - 0x38000000u + 0xFFFu + (size >> 13 & 1u)) >> 13;
    const std::uint32_t special = size > 0x7F800000u ? 0x7E00u : 0x7C00u;
    const std::uint32_t finite = size < 0x38800000u ? subnormal : normal;
    return static_cast<T>(sign | (size >= 0x477FF000u ? special : finite));
  }
};

}  // namespace lockstep
