// The largest of several vectors of channels, per channel, and the index of the vector it came
// from. 16-bit values are compared two at a time.
#pragma once

#include <cmath>
#include <cstdint>

#include "lockstep/kernels/cuda/primitives/vectors.cuh"

namespace lockstep {

// The first NaN wins, so a NaN in a window propagates. Of equal values the first wins.
__device__ __forceinline__ bool wins_over(float candidate, float best) {
  return !(candidate <= best) && best == best;
}

// The largest values of N channels so far, and their indices in the window.
template <class T, int N>
struct Largest {
  static_assert(sizeof(T) == 4 || N == 1);
  float best[N];
  int places[N];

  // Nothing yet; if all values are minus infinity, the result's index is `first`.
  __device__ explicit Largest(int first) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      best[i] = -INFINITY;
      places[i] = first;
    }
  }
  __device__ static Raw<T, N> least() {
    const Largest none(0);
    return packed<T, N>(none.best);
  }
  __device__ void consider(const Raw<T, N>& raw, int place) {
    float values[N];
    unpack<T, N>(raw, values);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const bool wins = wins_over(values[i], best[i]);
      best[i] = wins ? values[i] : best[i];
      places[i] = wins ? place : places[i];
    }
  }
  // The same if the index of a NaN does not matter.
  __device__ void consider_value(const Raw<T, N>& raw, int place) {
    consider(raw, place);
  }
  __device__ Raw<T, N> values() const {
    return packed<T, N>(best);
  }
  template <class Index>
  __device__ void store_places(Index* index) const {
    Raw<Index, N> raw;
    Index* elements = reinterpret_cast<Index*>(&raw);
#pragma unroll
    for (int i = 0; i < N; ++i) elements[i] = static_cast<Index>(places[i]);
    *reinterpret_cast<Raw<Index, N>*>(index) = raw;
  }
};

// Two 16-bit values in 32 bits.
template <class T>
struct PairOf;
template <>
struct PairOf<__half> {
  using Type = __half2;
  static constexpr unsigned kLeast = 0xFC00FC00U;  // minus infinity, twice
};
template <>
struct PairOf<__nv_bfloat16> {
  using Type = __nv_bfloat162;
  static constexpr unsigned kLeast = 0xFF80FF80U;
};

// The same for eight 16-bit values, in pairs: a 16-bit mask per value selects the winner.
template <class T>
struct LargestInPairs {
  using Pair = typename PairOf<T>::Type;
  static constexpr int kPairs = 4;
  unsigned best[kPairs];
  unsigned places[kPairs];

  __device__ explicit LargestInPairs(int first) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      best[i] = PairOf<T>::kLeast;
      places[i] = static_cast<unsigned>(first) * 0x10001U;
    }
  }
  __device__ static uint4 least() {
    constexpr unsigned kLeast = PairOf<T>::kLeast;
    return make_uint4(kLeast, kLeast, kLeast, kLeast);
  }
  __device__ static Pair pair_of(unsigned word) {
    return *reinterpret_cast<const Pair*>(&word);
  }
  __device__ void consider(const uint4& raw, int place) {
    const unsigned words[kPairs] = {raw.x, raw.y, raw.z, raw.w};
    const unsigned both = static_cast<unsigned>(place) * 0x10001U;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const Pair before = pair_of(best[i]);
      const unsigned wins = __hgtu2_mask(pair_of(words[i]), before) & __heq2_mask(before, before);
      best[i] = (best[i] & ~wins) | (words[i] & wins);
      places[i] = (places[i] & ~wins) | (both & wins);
    }
  }
  __device__ void consider_value(const uint4& raw, int place) {
    const unsigned words[kPairs] = {raw.x, raw.y, raw.z, raw.w};
    const unsigned both = static_cast<unsigned>(place) * 0x10001U;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const Pair before = pair_of(best[i]);
      const unsigned wins = __hgt2_mask(pair_of(words[i]), before);
      const Pair larger = __hmax2_nan(pair_of(words[i]), before);
      best[i] = *reinterpret_cast<const unsigned*>(&larger);
      places[i] = (places[i] & ~wins) | (both & wins);
    }
  }
  __device__ uint4 values() const {
    return make_uint4(best[0], best[1], best[2], best[3]);
  }
  __device__ void store_places(std::uint8_t* index) const {
    *reinterpret_cast<uint2*>(index) = make_uint2(__byte_perm(places[0], places[1], 0x6420),
                                                  __byte_perm(places[2], places[3], 0x6420));
  }
};

template <class T, int N>
struct LargestOf {
  using Type = Largest<T, N>;
};
template <>
struct LargestOf<__half, 8> {
  using Type = LargestInPairs<__half>;
};
template <>
struct LargestOf<__nv_bfloat16, 8> {
  using Type = LargestInPairs<__nv_bfloat16>;
};

}  // namespace lockstep
