// Functions compiled for several instruction sets, of which the best that the machine has is picked
// when the program starts.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define LOCKSTEP_VECTORIZED \
  __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define LOCKSTEP_VECTORIZED
#endif

// Part of a vectorised function: becomes part of each of its versions.
#define LOCKSTEP_INLINE __attribute__((always_inline)) inline
