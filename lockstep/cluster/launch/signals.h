// SignalsAsEvents: while it lives, the signals that stop a job are not delivered but read from a
// descriptor. SIGPIPE is ignored: writing to a closed pipe fails instead.
#pragma once

#include <csignal>
#include <string>

#include "lockstep/cluster/launch/descriptor.h"

namespace lockstep::launch {

class SignalsAsEvents {
 public:
  SignalsAsEvents();
  ~SignalsAsEvents();
  SignalsAsEvents(const SignalsAsEvents&) = delete;
  SignalsAsEvents& operator=(const SignalsAsEvents&) = delete;

  int descriptor() const { return descriptor_.get(); }
  int next();  // the signal that came; 0: none

 private:
  sigset_t before_ = {};
  struct sigaction pipe_before_ = {};
  Descriptor descriptor_;
};

// "SIGTERM"; "signal 42" for the less known.
std::string signal_text(int signal);

}  // namespace lockstep::launch
