// How a worker is started on another host.
//
// ssh runs one constant shell line there. Everything else goes through ssh's standard input, where
// no list of processes shows it: a script of so many lines (working directory, environment,
// program), the secret, and then one signal name per line, which a watcher on the other side sends
// to the worker. When the input ends, because the launcher has closed it, was killed or is out of
// reach, the watcher kills the worker and what it has started. The worker itself reads /dev/null,
// and the secret from descriptor kRemoteSecret, a pipe. The other host needs sh, sed and setsid;
// with taskset, workers run on cores of their own.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/cluster/launch/hosts.h"

namespace lockstep::launch {

inline constexpr int kRemoteSecret = 3;

using Variables = std::vector<std::pair<std::string, std::string>>;

struct RemoteWorker {
  Seat seat;
  std::string folder;
  std::vector<std::string> program;
  Variables variables;
  int cores = 0;          // per worker; 0: its share of that host's
  bool outlives = false;  // it goes on when ssh has ended
  std::string secret;
};

// `command` ("ssh -p 2222") as words, the host and the shell line. If the command is ssh itself, it
// gets options that keep it from asking questions and let it notice a host that is gone.
std::vector<std::string> ssh_words(const std::vector<std::string>& command,
                                   const std::string& host);

// What ssh's standard input begins with.
std::string remote_input(const RemoteWorker& worker);
// The line that has the watcher send a signal to the worker; empty for signals it does not know.
std::string remote_signal(int signal);

// A word of a shell: 'don'\''t'.
std::string quoted(const std::string& text);

}  // namespace lockstep::launch
