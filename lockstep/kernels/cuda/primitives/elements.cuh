// Elements as kernels hold them: vectors of consecutive elements for one load instruction, up to 16
// bytes, and the type in which an element is computed.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace lockstep {

inline constexpr int kVectorBytes = 16;

// V consecutive elements, aligned to their total size.
template <class T, int V>
struct alignas(sizeof(T) * V) Vector {
  T items[V];
};

// Elements per vector such that the largest of the types fills 16 bytes.
template <class... T>
inline constexpr int kCommonVectorSize = kVectorBytes / static_cast<int>(std::max({sizeof(T)...}));

template <class T, int V>
__device__ __forceinline__ Vector<T, V> load_vector(const T* from) {
  return *reinterpret_cast<const Vector<T, V>*>(from);
}

template <class T, int V>
__device__ __forceinline__ void store_vector(T* to, const Vector<T, V>& vector) {
  *reinterpret_cast<Vector<T, V>*>(to) = vector;
}

// Whether an address is aligned for vectors of V elements.
template <class T, int V>
bool is_aligned(const T* address) {
  return reinterpret_cast<std::uintptr_t>(address) % (sizeof(T) * V) == 0;
}

// 16-bit floats are computed in f32, everything else in its own type.
__device__ __forceinline__ float widen(__half x) {
  return __half2float(x);
}
__device__ __forceinline__ float widen(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
template <class T>
__device__ __forceinline__ T widen(T x) {
  return x;
}

template <class T>
using Wide =
    std::conditional_t<std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>, float, T>;

// Converts a number to its storage type, rounded to nearest, ties to even.
template <class T, class C>
__device__ __forceinline__ T narrow(C x) {
  if constexpr (std::is_same_v<T, __half>) {
    if constexpr (std::is_same_v<C, double>) return __double2half(x);
    return __float2half_rn(static_cast<float>(x));
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if constexpr (std::is_same_v<C, double>) return __double2bfloat16(x);
    return __float2bfloat16_rn(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

}  // namespace lockstep
