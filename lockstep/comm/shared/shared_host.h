// SharedHost: the processes of one host that belong to one job, and the groups that they make.
// Ranks of different processes meet in memory that all of them map; this needs no other rank, no
// server and no network.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep {

struct SharedGroupOptions {
  // Names of all ranks, in their order, for messages.
  std::vector<std::string> names = {};
  // How many ranks each process holds, possibly none: the first ones belong to process 0.
  std::vector<int> ranks_of_process = {};
  // How long a rank waits for the others.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

// Whether a descriptor survives exec, which is needed if the workers are other programs.
enum class OnExec { Close, Keep };

class SharedHost {
 public:
  // Creates the memory through which `processes` meet; returns its descriptor, which they inherit.
  static int create(int processes, OnExec on_exec = OnExec::Close);

  // Takes ownership of the descriptor in this process, which is process number `process`. Does not
  // wait for the others. `timeout`: how long making a group waits for them.
  SharedHost(int fd, int process, int processes, std::chrono::milliseconds timeout);
  ~SharedHost();
  SharedHost(const SharedHost&) = delete;
  SharedHost& operator=(const SharedHost&) = delete;

  int process() const;
  int processes() const;

  // Collective and ordered: the n-th call of every process makes the same group. CommError, naming
  // the missing processes, after the timeout; UsageError if they ask for different groups. A group
  // may outlive the host.
  std::unique_ptr<Group> make_group(const SharedGroupOptions& options);

 private:
  struct Parts;
  std::shared_ptr<Parts> parts_;
};

}  // namespace lockstep
