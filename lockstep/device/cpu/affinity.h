// Restores the calling thread's CPU affinity at the end of a scope.
#pragma once

#include <sched.h>

namespace lockstep {

class KeepAffinity {
 public:
  KeepAffinity() : known_(sched_getaffinity(0, sizeof(before_), &before_) == 0) {}
  ~KeepAffinity() {
    if (known_) sched_setaffinity(0, sizeof(before_), &before_);
  }
  KeepAffinity(const KeepAffinity&) = delete;
  KeepAffinity& operator=(const KeepAffinity&) = delete;

 private:
  cpu_set_t before_;
  bool known_;
};

}  // namespace lockstep
