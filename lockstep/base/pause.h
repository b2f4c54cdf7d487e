// Tells the core that a loop waits for another one, so that its sibling thread gets the core's time
// and the loop takes less power.
#pragma once

namespace lockstep {

inline void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace lockstep
