#include "lockstep/cluster/launch/signals.h"

#include <sys/signalfd.h>

#include <cstring>
#include <string>

namespace lockstep::launch {

SignalsAsEvents::SignalsAsEvents() {
  sigset_t set;
  sigemptyset(&set);
  for (const int each : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) sigaddset(&set, each);
  pthread_sigmask(SIG_BLOCK, &set, &before_);
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &pipe_before_);
  descriptor_ = Descriptor(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!descriptor_) fail_with_errno("signals cannot be awaited");
}

SignalsAsEvents::~SignalsAsEvents() {
  while (next() != 0) {  // the job is over: what came late stops nothing
  }
  sigaction(SIGPIPE, &pipe_before_, nullptr);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

int SignalsAsEvents::next() {
  signalfd_siginfo info = {};
  const ssize_t count = read(descriptor_.get(), &info, sizeof(info));
  return count == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
}

std::string signal_text(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

}  // namespace lockstep::launch
