// Loops compiled for several instruction sets, of which the best that the machine has is picked
// when the program starts.
//
// Functions whose loops the compiler vectorises by itself carry LOCKSTEP_VECTORIZED (one version
// only under a sanitizer, whose runtime is not there yet when versions are picked). What they call
// in those loops carries LOCKSTEP_INLINE and so becomes part of each version.
#pragma once

#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define LOCKSTEP_VECTORIZED \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LOCKSTEP_VECTORIZED
#endif

#define LOCKSTEP_INLINE __attribute__((always_inline)) inline
