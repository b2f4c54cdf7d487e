// Half (IEEE binary16) and BFloat16: storage types for 16-bit floats, without arithmetic. They
// widen to float exactly; a float is rounded to nearest, ties to even. What is too large becomes
// infinite, and NaN stays NaN.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <type_traits>

#include "lockstep/base/dtype.h"
#include "lockstep/base/vectorized.h"

namespace lockstep {

// The conversions of the two formats, without branches, so that loops vectorise.
struct BF16Format {
  static LOCKSTEP_INLINE constexpr float widen(std::uint16_t value) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
  }
  static LOCKSTEP_INLINE constexpr std::uint16_t round(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
    const std::uint32_t quiet = bits >> 16 | 0x40u;
    return static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
  }
};

struct F16Format {
  // With exponent and fraction moved to their places in f32, the number is too small by 2^112, also
  // if it is subnormal.
  static LOCKSTEP_INLINE constexpr float widen(std::uint16_t value) {
    const std::uint32_t sign = (value & 0x8000u) << 16;
    const std::uint32_t size = (value & 0x7FFFu) << 13;
    const auto scaled = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) * 0x1p112F);
    const std::uint32_t special = size | 0x7F800000u;
    return std::bit_cast<float>(sign | (size >= 0x0F800000u ? special : scaled));
  }
  static LOCKSTEP_INLINE constexpr std::uint16_t round(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = bits >> 16 & 0x8000u;
    const std::uint32_t size = bits & 0x7FFFFFFFu;
    // Adding 0.5 rounds to a multiple of 2^-24, the spacing of f16's subnormal numbers.
    const float small = std::bit_cast<float>(size) + 0.5F;
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(small) - 0x3F000000u;
    const std::uint32_t normal = (size - 0x38000000u + 0xFFFu + (size >> 13 & 1u)) >> 13;
    const std::uint32_t special = size > 0x7F800000u ? 0x7E00u : 0x7C00u;
    const std::uint32_t finite = size < 0x38800000u ? subnormal : normal;
    return static_cast<std::uint16_t>(sign | (size >= 0x477FF000u ? special : finite));
  }
};

// A double as a float that rounds to the same 16 bits as the double itself: truncated, with the
// last bit set if anything was cut off, so that truncation creates no tie.
constexpr float round_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || value != value) return nearest;
  const auto bits = std::bit_cast<std::uint32_t>(nearest);
  const double too_far = value < 0 ? value - nearest : nearest - value;
  return std::bit_cast<float>((too_far > 0 ? bits - 1 : bits) | 1u);
}

template <class Format>
struct SmallFloat {
  std::uint16_t bits = 0;

  constexpr SmallFloat() = default;
  explicit constexpr SmallFloat(float value) : bits(Format::round(value)) {}
  template <class Number>
  requires std::is_arithmetic_v<Number>
  explicit constexpr SmallFloat(Number value)
      : SmallFloat(round_to_odd(static_cast<double>(value))) {}
  constexpr operator float() const { return Format::widen(bits); }
};

using Half = SmallFloat<F16Format>;
using BFloat16 = SmallFloat<BF16Format>;

template <class T>
inline constexpr bool is_small_float_v = std::same_as<T, Half> || std::same_as<T, BFloat16>;

// Whether a dtype is stored as a SmallFloat.
constexpr bool is_small_float(DType dtype) {
  return dtype == DType::F16 || dtype == DType::BF16;
}

template <>
constexpr DType dtype_of<Half>() {
  return DType::F16;
}
template <>
constexpr DType dtype_of<BFloat16>() {
  return DType::BF16;
}

}  // namespace lockstep
