// The update rules of graph/ops/update.h over flat memory: one pass that reads gradient and slots
// and writes parameter and slots. Scalars are computed once, before the pass.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "lockstep/base/vectorized.h"

namespace lockstep {

enum class UpdateRule { Sgd, SgdMomentum, Adam, RmsProp, Adagrad, Lars, Lamb, Accumulate };

// A contiguous range of elements that are updated in the same way. Pointers that a rule or a norm
// does not use are null.
template <class T>
struct UpdateRange {
  T* parameter = nullptr;
  const T* gradient = nullptr;
  std::array<T*, 3> slots = {};
  std::int64_t count = 0;

  UpdateRange piece(std::int64_t begin, std::int64_t end) const {
    const auto from = [begin](auto* start) { return start == nullptr ? nullptr : start + begin; };
    UpdateRange result{from(parameter), from(gradient), {}, end - begin};
    for (std::size_t i = 0; i < slots.size(); ++i) result.slots[i] = from(slots[i]);
    return result;
  }
};

template <class T>
struct UpdateScalars {
  T rate = 0;
  T scale = 1;                                  // of the gradient, including clipping by norm
  T clip = std::numeric_limits<T>::infinity();  // limit for each element of the scaled gradient
  T keep = 1;                                   // 1 - rate · decoupled weight decay
  T decay = 0;                                  // lars, lamb: weight decay inside the rule
  T epsilon = 0;
  T momentum = 0;
  T beta_1 = 0;     // 1 - beta_1; rmsprop: rho
  T beta_2 = 0;     // 1 - beta_2; rmsprop: 1 - rho
  T step = 0;       // adam: the rate with both bias corrections; lars, lamb: the local rate
  T correct_1 = 1;  // lamb: 1 / (1 - beta_1^t)
  T correct_2 = 1;  // lamb: 1 / (1 - beta_2^t)
  bool nesterov = false;
};

// The gradient as a rule sees it: scaled and clipped. NaN propagates.
template <class T>
LOCKSTEP_INLINE T seen(T gradient, const UpdateScalars<T>& s) {
  const T g = gradient * s.scale;
  const T below = g > s.clip ? s.clip : g;
  return below < -s.clip ? -s.clip : below;
}

// a / b, and 0 if a is 0, whatever b is. With an epsilon of 0 an element whose gradients have all
// been 0 would get 0 / 0; it does not change instead. The same holds for the padding of a blocked
// parameter, whose NaN would otherwise spread to other elements.
template <class T>
LOCKSTEP_INLINE T quotient(T a, T b) {
  return a == T(0) ? a : a / b;
}

template <class T>
LOCKSTEP_INLINE void update_sgd(const UpdateRange<T>& r, const UpdateScalars<T>& s) {
  T* p = r.parameter;
  const T* g = r.gradient;
#pragma omp simd
  for (std::int64_t i = 0; i < r.count; ++i) p[i] = p[i] * s.keep - s.rate * seen(g[i], s);
}

// A rate of 0 begins the sum anew.
template <class T>
LOCKSTEP_INLINE void accumulate(const UpdateRange<T>& r, const UpdateScalars<T>& s) {
  T* p = r.parameter;
  const T* g = r.gradient;
  if (s.rate == T(0)) {
#pragma omp simd
    for (std::int64_t i = 0; i < r.count; ++i) p[i] = seen(g[i], s);
    return;
  }
#pragma omp simd
  for (std::int64_t i = 0; i < r.count; ++i) p[i] += seen(g[i], s);
}

template <class T>
LOCKSTEP_INLINE void update_sgd_momentum(const UpdateRange<T>& r, const UpdateScalars<T>& s) {
  T* p = r.parameter;
  const T* g = r.gradient;
  T* v = r.slots[0];
  // p += ahead · v + push · (rate · g), for both kinds of momentum.
  const T ahead = s.nesterov ? s.momentum : T(1);
  const T push = s.nesterov ? T(1) : T(0);
#pragma omp simd
  for (std::int64_t i = 0; i < r.count; ++i) {
    const T move = s.rate * seen(g[i], s);
    const T velocity = s.momentum * v[i] - move;
    v[i] = velocity;
    p[i] = p[i] * s.keep + (ahead * velocity - push * move);
  }
}

template <class T>
LOCKSTEP_INLINE void update_adam(const UpdateRange<T>& r, const UpdateScalars<T>& s) {
  T* p = r.parameter;
  const T* g = r.gradient;
  T* m = r.slots[0];
  T* v = r.slots[1];
#pragma omp simd
  for (std::int64_t i = 0; i < r.count; ++i) {
    const T x = seen(g[i], s);
    const T first = m[i] + (x - m[i]) * s.beta_1;
    const T second = v[i] + (x * x - v[i]) * s.beta_2;
    m[i] = first;
    v[i] = second;
    p[i] = p[i] * s.keep - quotient(s.step * first, std::sqrt(second) + s.epsilon);
  }
}

template <class T, bool kMomentum, bool kCentered>
LOCKSTEP_INLINE void update_rmsprop_as(const UpdateRange<T>& r, const UpdateScalars<T>& s) {
  T* p = r.parameter;
  const T* g = r.gradient;
  T* v = r.slots[0];
  T* m = r.slots[1];
  T* mean = r.slots[2];
#pragma omp simd
  for (std::int64_t i = 0; i < r.count; ++i) {
    const T x = seen(g[i], s);
    const T square = s.beta_1 * v[i] + s.beta_2 * x * x;
    v[i] = square;
    T deviation = square;
    if constexpr (kCentered) {
      const T average = s.beta_1 * mean[i] + s.beta_2 * x;
      mean[i] = average;
      deviation -= average * average;
    }
    T move = quotient(s.rate * x, std::sqrt(deviation + s.epsilon));
    if constexpr (kMomentum) {
      move += s.momentum * m[i];
      m[i] = move;
    }
    p[i] = p[i] * s.keep - move;
  }
}

template <class T>
LOCKSTEP_INLINE void update_rmsprop(const UpdateRange<T>& r, const UpdateScalars<T>& s) {
  const bool momentum = r.slots[1] != nullptr;
  const bool centered = r.slots[2] != nullptr;
  if (momentum && centered) return update_rmsprop_as<T, true, true>(r, s);
  if (momentum) return update_rmsprop_as<T, true, false>(r, s);
  if (centered) return update_rmsprop_as<T, false, true>(r, s);
  update_rmsprop_as<T, false, false>(r, s);
}

template <class T>
LOCKSTEP_INLINE void update_adagrad(const UpdateRange<T>& r, const UpdateScalars<T>& s) {
  T* p = r.parameter;
  const T* g = r.gradient;
  T* a = r.slots[0];
#pragma omp simd
  for (std::int64_t i = 0; i < r.count; ++i) {
    const T x = seen(g[i], s);
    const T sum = a[i] + x * x;
    a[i] = sum;
    p[i] = p[i] * s.keep - quotient(s.rate * x, std::sqrt(sum + s.epsilon));
  }
}

// LARS (You, Gitman, Ginsburg, 2017).
template <class T>
LOCKSTEP_INLINE void update_lars(const UpdateRange<T>& r, const UpdateScalars<T>& s) {
  T* p = r.parameter;
  const T* g = r.gradient;
  T* v = r.slots[0];
#pragma omp simd
  for (std::int64_t i = 0; i < r.count; ++i) {
    const T velocity = s.momentum * v[i] + s.step * (seen(g[i], s) + s.decay * p[i]);
    v[i] = velocity;
    p[i] -= velocity;
  }
}

// LAMB (You et al., 2019): the direction, from moments that update_lamb_moments has updated.
template <class T>
LOCKSTEP_INLINE T lamb_direction(T p, T m, T v, const UpdateScalars<T>& s) {
  return quotient(m * s.correct_1, std::sqrt(v * s.correct_2) + s.epsilon) + s.decay * p;
}

template <class T>
LOCKSTEP_INLINE void update_lamb_moments(const UpdateRange<T>& r, const UpdateScalars<T>& s) {
  const T* g = r.gradient;
  T* m = r.slots[0];
  T* v = r.slots[1];
#pragma omp simd
  for (std::int64_t i = 0; i < r.count; ++i) {
    const T x = seen(g[i], s);
    m[i] += (x - m[i]) * s.beta_1;
    v[i] += (x * x - v[i]) * s.beta_2;
  }
}

template <class T>
LOCKSTEP_INLINE void update_lamb(const UpdateRange<T>& r, const UpdateScalars<T>& s) {
  T* p = r.parameter;
  const T* m = r.slots[0];
  const T* v = r.slots[1];
#pragma omp simd
  for (std::int64_t i = 0; i < r.count; ++i) p[i] -= s.step * lamb_direction(p[i], m[i], v[i], s);
}

template <class T>
LOCKSTEP_INLINE void update_rule(UpdateRule rule, const UpdateRange<T>& r,
                                 const UpdateScalars<T>& s) {
  switch (rule) {
    case UpdateRule::Sgd:
      return update_sgd(r, s);
    case UpdateRule::SgdMomentum:
      return update_sgd_momentum(r, s);
    case UpdateRule::Adam:
      return update_adam(r, s);
    case UpdateRule::RmsProp:
      return update_rmsprop(r, s);
    case UpdateRule::Adagrad:
      return update_adagrad(r, s);
    case UpdateRule::Lars:
      return update_lars(r, s);
    case UpdateRule::Lamb:
      return update_lamb(r, s);
    case UpdateRule::Accumulate:
      return accumulate(r, s);
  }
}

// What a norm is computed over.
// Next direction: as it will be when the moments are updated.
enum class NormOf { Parameter, Gradient, LambDirection, NextLambDirection };

// Elements per block; their squares are added to interleaved sums: vectorised, and in the same
// order on every instruction set.
inline constexpr std::int64_t kNormBlock = 256;
inline constexpr std::size_t kNormSums = 4;

template <class T>
LOCKSTEP_INLINE void copy_block(NormOf what, const UpdateRange<T>& r, const UpdateScalars<T>& s,
                                T* block) {
  const T* p = r.parameter;
  const T* g = r.gradient;
  const T* m = r.slots[0];
  const T* v = r.slots[1];
  if (what == NormOf::Parameter) {
    for (std::int64_t i = 0; i < r.count; ++i) block[i] = p[i];
  } else if (what == NormOf::Gradient) {
    for (std::int64_t i = 0; i < r.count; ++i) block[i] = seen(g[i], s);
  } else if (what == NormOf::LambDirection) {
    for (std::int64_t i = 0; i < r.count; ++i) block[i] = lamb_direction(p[i], m[i], v[i], s);
  } else {
    for (std::int64_t i = 0; i < r.count; ++i) {
      const T x = seen(g[i], s);
      const T first = m[i] + (x - m[i]) * s.beta_1;
      const T second = v[i] + (x * x - v[i]) * s.beta_2;
      block[i] = lamb_direction(p[i], first, second, s);
    }
  }
}

template <class T>
LOCKSTEP_INLINE double sum_of_squares(NormOf what, const UpdateRange<T>& r,
                                      const UpdateScalars<T>& s) {
  typedef T Elements __attribute__((vector_size(kNormSums * sizeof(T))));
  typedef double Sums __attribute__((vector_size(kNormSums * sizeof(double))));
  Sums even{};
  Sums odd{};
  for (std::int64_t begin = 0; begin < r.count; begin += kNormBlock) {
    std::array<T, static_cast<std::size_t>(kNormBlock)> block;
    const std::int64_t end = begin + kNormBlock < r.count ? begin + kNormBlock : r.count;
    copy_block(what, r.piece(begin, end), s, block.data());
    for (std::int64_t i = end - begin; i < kNormBlock; ++i) block[static_cast<std::size_t>(i)] = 0;
    for (std::size_t i = 0; i < block.size(); i += 2 * kNormSums) {
      Elements front;
      Elements back;
      std::memcpy(&front, block.data() + i, sizeof(front));
      std::memcpy(&back, block.data() + i + kNormSums, sizeof(back));
      const Sums x = __builtin_convertvector(front, Sums);
      const Sums y = __builtin_convertvector(back, Sums);
      even += x * x;
      odd += y * y;
    }
  }
  even += odd;
  return (even[0] + even[1]) + (even[2] + even[3]);
}

}  // namespace lockstep
