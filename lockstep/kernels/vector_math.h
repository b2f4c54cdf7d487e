// Functions of one f32 that vectorise: no branch, no table, no call. Defined for every input; NaN
// propagates. Errors are relative, in units in the last place (1.2e-7 at most).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "lockstep/base/vectorized.h"

namespace lockstep {

// e^x for x <= 0, within two units: 2^n · e^r with |r| <= ln 2 / 2, e^r by its Taylor polynomial.
// Denormal results are flushed to 0.
LOCKSTEP_INLINE float exp_nonpositive(float x) {
  const float clamped = x < -87.3f ? -87.3f : x;
  // Adding 1.5 · 2^23 leaves the rounded n in the lowest bits.
  const float shifted = clamped * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (clamped - n * 0.693145752f) - n * 1.42860677e-6f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(shifted) - 0x4B400000u + 127u;
  const float power = std::bit_cast<float>(exponent << 23);
  return x < -87.3f ? 0.0f : p * power;
}

// The functions activations are built from, vectorised; StandardMath has the same from <cmath>.
struct VectorMath {
  // 1 / (1 + e^-x), within four units.
  LOCKSTEP_INLINE static float logistic(float x) {
    const float e = exp_nonpositive(-std::fabs(x));
    const float share = 1.0f / (1.0f + e);
    return x < 0.0f ? e * share : share;
  }

  // Within four units; near 0, where the quotient would cancel, by an odd polynomial.
  LOCKSTEP_INLINE static float tanh(float x) {
    const float size = std::fabs(x);
    const float e = exp_nonpositive(-2.0f * size);
    const float far = (1.0f - e) / (1.0f + e);
    const float square = x * x;
    float p = -0.00566692302f;
    p = p * square + 0.0206061296f;
    p = p * square - 0.0537299932f;
    p = p * square + 0.133313308f;
    p = p * square - 0.333332781f;
    const float near = x + x * square * p;
    return size < 0.625f ? near : (x < 0.0f ? -far : far);
  }

  // log(1 + e^-x) for x >= 0, within four units: with s = e / (2 + e) it is 2 artanh s, and s is at
  // most a third.
  LOCKSTEP_INLINE static float log1p_exp_minus(float x) {
    const float e = exp_nonpositive(-x);
    const float s = e / (2.0f + e);
    const float square = s * s;
    float p = 1.0f / 15;
    p = p * square + 1.0f / 13;
    p = p * square + 1.0f / 11;
    p = p * square + 1.0f / 9;
    p = p * square + 1.0f / 7;
    p = p * square + 1.0f / 5;
    p = p * square + 1.0f / 3;
    p = p * square + 1.0f;
    return 2.0f * s * p;
  }

  // e^(-x² / 2).
  LOCKSTEP_INLINE static float bell(float x) { return exp_nonpositive(x * x * -0.5f); }

  // The normal distribution Φ(x) with an accurate tail: with z = |x| / √2 and t = 1 / (1 + 0.3 z),
  // erfc(z) = e^(-z²) t P(t), P fitted to 2e-8 for z below 9.4, beyond which the tail is 0 in f32.
  LOCKSTEP_INLINE static float normal_cumulative(float x) {
    const float t = 1.0f / (1.0f + 0.212132034f * std::fabs(x));
    float p = -0.129406026f;
    p = p * t + 0.484949236f;
    p = p * t - 0.510895142f;
    p = p * t + 0.545977996f;
    p = p * t - 0.0933105333f;
    p = p * t + 0.214282222f;
    p = p * t + 0.148527504f;
    p = p * t + 0.170684601f;
    p = p * t + 0.169190122f;
    const float tail = 0.5f * bell(x) * t * p;
    return x < 0.0f ? tail : 1.0f - tail;
  }
};

}  // namespace lockstep
