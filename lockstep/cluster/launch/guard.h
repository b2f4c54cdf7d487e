// Guard: a small process that kills the workers' process groups if the launcher is killed.
//
// The system kills the workers themselves when the launcher ends (PR_SET_PDEATHSIG), but not what
// they have started. The guard reads a pipe whose other end only the launcher has; the pipe ends
// with the launcher, and the guard kills the groups that it was told of.
#pragma once

#include <sys/types.h>

#include "lockstep/cluster/launch/descriptor.h"

namespace lockstep::launch {

class Guard {
 public:
  // Call it before other pipes are opened: the guard keeps what is open now.
  Guard();
  // Lets the guard end. All its groups must have been removed.
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  // A process that writes its number here adds its group; it does so before it becomes the worker,
  // so that there is no moment at which a worker is not guarded.
  int descriptor() const { return pipe_.get(); }
  // Before the group's leader is reaped, so that the number is not another group's yet.
  void remove(pid_t group);

 private:
  pid_t id_ = -1;
  Descriptor pipe_;
};

}  // namespace lockstep::launch
