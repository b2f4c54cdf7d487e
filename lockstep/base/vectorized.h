// Loops compiled for several instruction sets; the best one that the machine supports is chosen
// when the program starts.
//
// Functions with loops that the compiler vectorises are marked LOCKSTEP_VECTORIZED (only one
// version under a sanitizer, because its runtime is not up yet when versions are chosen). Functions
// that they call in those loops are marked LOCKSTEP_INLINE and so become part of each version.
#pragma once

#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define LOCKSTEP_VECTORIZED \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LOCKSTEP_VECTORIZED
#endif

#define LOCKSTEP_INLINE __attribute__((always_inline)) inline
