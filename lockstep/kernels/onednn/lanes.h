// Explicit vector types, for loops that the compiler does not vectorise. Such code must be compiled
// for one instruction set as a whole, so it is in a separate file that every_isa.h includes once
// per instruction set.
#pragma once

#include "lockstep/base/vectorized.h"

// Put after a lambda's parameters: the lambda is inlined and so compiled for its caller's
// instruction set.
#define LOCKSTEP_INLINE_LAMBDA __attribute__((always_inline))

namespace lockstep::onednn {

// Vectors as wide as a block of channels, and narrower ones.
template <int kLanes>
struct Lanes;
template <>
struct Lanes<1> {
  typedef float Floats __attribute__((vector_size(4)));
};
template <>
struct Lanes<4> {
  typedef float Floats __attribute__((vector_size(16)));
};
template <>
struct Lanes<8> {
  typedef float Floats __attribute__((vector_size(32)));
  typedef int Ints __attribute__((vector_size(32)));
  typedef unsigned char Bytes __attribute__((vector_size(8)));
};
template <>
struct Lanes<16> {
  typedef float Floats __attribute__((vector_size(64)));
  typedef int Ints __attribute__((vector_size(64)));
  typedef unsigned char Bytes __attribute__((vector_size(16)));
};

// The best version of a function for this machine: x86-64-v4 (AVX-512), v3 (AVX2), or any; always
// the last one where there is only one (vectorized.h).
template <class F>
F* best_isa(F* v4, F* v3, F* any) {
#if defined(__x86_64__) && !defined(__clang__) && !defined(LOCKSTEP_ONE_ISA)
  if (__builtin_cpu_supports("x86-64-v4")) return v4;
  if (__builtin_cpu_supports("x86-64-v3")) return v3;
#endif
  static_cast<void>(v4);
  static_cast<void>(v3);
  return any;
}

}  // namespace lockstep::onednn
