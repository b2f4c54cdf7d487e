// Vector loads and stores: a vector is a row of consecutive elements that a thread loads or stores
// at once, 16 bytes if aligned, and computes with as floats. Memory-bound kernels keep several raw
// vectors in flight and unpack them when they are used.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace lockstep {

// Elements per full vector.
template <class T>
inline constexpr int kVectorSize = 16 / static_cast<int>(sizeof(T));

__device__ __forceinline__ float as_float(float x) {
  return x;
}
__device__ __forceinline__ float as_float(__half x) {
  return __half2float(x);
}
__device__ __forceinline__ float as_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

// Rounded to nearest, ties to even.
template <class T>
__device__ __forceinline__ T rounded(float x);
template <>
__device__ __forceinline__ float rounded<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __half rounded<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 rounded<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// An integer type for the bits of a vector of so many bytes.
template <int kBytes>
struct RawBits;
template <>
struct RawBits<1> {
  using Type = std::uint8_t;
};
template <>
struct RawBits<2> {
  using Type = unsigned short;
};
template <>
struct RawBits<4> {
  using Type = unsigned;
};
template <>
struct RawBits<8> {
  using Type = uint2;
};
template <>
struct RawBits<16> {
  using Type = uint4;
};
template <class T, int N>
using Raw = typename RawBits<static_cast<int>(sizeof(T)) * N>::Type;

template <class T, int N>
__device__ __forceinline__ Raw<T, N> load_raw(const T* from) {
  return *reinterpret_cast<const Raw<T, N>*>(from);
}

template <class T, int N>
__device__ __forceinline__ void unpack(const Raw<T, N>& raw, float (&values)[N]) {
  const T* elements = reinterpret_cast<const T*>(&raw);
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = as_float(elements[i]);
}

template <class T, int N>
__device__ __forceinline__ void load_floats(const T* from, float (&values)[N]) {
  unpack<T, N>(load_raw<T, N>(from), values);
}

// Two at a time: one instruction rounds both.
__device__ __forceinline__ __half2 rounded_pair(float a, float b, __half) {
  return __floats2half2_rn(a, b);
}
__device__ __forceinline__ __nv_bfloat162 rounded_pair(float a, float b, __nv_bfloat16) {
  return __floats2bfloat162_rn(a, b);
}
__device__ __forceinline__ float2 rounded_pair(float a, float b, float) {
  return make_float2(a, b);
}

template <class T, int N>
__device__ __forceinline__ Raw<T, N> packed(const float (&values)[N]) {
  Raw<T, N> raw;
  if constexpr (N % 2 == 0) {
    using Pair = decltype(rounded_pair(0.0F, 0.0F, T{}));
    Pair* pairs = reinterpret_cast<Pair*>(&raw);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      pairs[i] = rounded_pair(values[2 * i], values[2 * i + 1], T{});
    }
  } else {
    T* elements = reinterpret_cast<T*>(&raw);
#pragma unroll
    for (int i = 0; i < N; ++i) elements[i] = rounded<T>(values[i]);
  }
  return raw;
}

template <class T, int N>
__device__ __forceinline__ void store_floats(T* to, const float (&values)[N]) {
  *reinterpret_cast<Raw<T, N>*>(to) = packed<T, N>(values);
}

// Whether an address is aligned to 16 bytes; null counts as aligned.
inline bool on_vector_boundary(const void* place) {
  return reinterpret_cast<std::uintptr_t>(place) % 16 == 0;
}

template <class... Places>
bool all_on_vector_boundaries(const Places*... places) {
  return (on_vector_boundary(places) && ...);
}

}  // namespace lockstep
