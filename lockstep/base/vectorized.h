// Loops compiled for several instruction sets; the best one that the machine supports is chosen
// when the program starts.
//
// Functions with loops that the compiler vectorises are marked LOCKSTEP_VECTORIZED; those that they
// call in such loops are marked LOCKSTEP_INLINE and become part of each version. Only one version:
// LOCKSTEP_ONE_ISA (cmake/one_isa.cmake), sanitizers (not up yet when versions are chosen).
#pragma once

#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && \
    !defined(LOCKSTEP_ONE_ISA) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define LOCKSTEP_HAS_VERSIONS 1
#define LOCKSTEP_VECTORIZED \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LOCKSTEP_HAS_VERSIONS 0
#define LOCKSTEP_VECTORIZED
#endif

#define LOCKSTEP_INLINE __attribute__((always_inline)) inline
