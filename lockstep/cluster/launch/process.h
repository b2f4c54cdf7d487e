// A worker's process: started, observed, signalled.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "lockstep/cluster/launch/descriptor.h"

namespace lockstep::launch {

struct ProcessOptions {
  std::string program;                   // a path
  std::vector<std::string> arguments;    // with the program's name as the first
  std::vector<std::string> environment;  // "NAME=VALUE"
  std::vector<int> affinity = {};        // empty: the launcher's cores
  int input = -1;                        // becomes its standard input; -1: /dev/null
  int inherited = -1;                    // stays open in it, under the same number
  // Where it writes its number before it becomes the program (Guard::descriptor). Then it is killed
  // when the launcher ends, however that happens. -1: it may outlive the launcher.
  int guard = -1;
  bool outlives = false;  // it goes on when nobody reads any more what it writes
};

struct Process {
  pid_t id = -1;          // also of its session and process group
  Descriptor ended = {};  // a pidfd: readable when the process has ended
  Descriptor out = {};    // its standard output and standard error, without blocking
  Descriptor err = {};

  // Sends a signal to the process and to what it has started; nothing if it has been reaped.
  void signal(int number) const;
};

// How a process ended: by exit code, or by a signal.
struct End {
  int code = 0;
  int signal = 0;

  bool good() const { return code == 0 && signal == 0; }
  int exit_code() const { return signal != 0 ? 128 + signal : code; }  // as shells report it
};

// Starts a process in a session of its own, which no terminal can signal, with default signal
// handling. The calling thread must live as long as the process should: with `guard`,
// its end kills the process. UsageError if the program cannot be executed.
Process start_process(const ProcessOptions& options);

// Kills what an ended process has left behind in its group, and takes its exit status.
End reap(Process& process);

// The file that a name stands for: a path, or an executable file in one of the folders of `path`
// ("/usr/bin:/bin"). UsageError if there is none.
std::string find_program(const std::string& name, const std::string& path);

}  // namespace lockstep::launch
