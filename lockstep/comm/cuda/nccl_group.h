// Ranks with a GPU each, over NCCL: all ranks of one process as a group, or one rank of several
// processes. NCCL is loaded when the first of them is made.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep {

// Identifies the ranks that belong together; one process makes it and hands it to the others.
std::string make_nccl_id();

struct NcclRankOptions {
  std::string id;  // of make_nccl_id
  int rank = 0;
  int size = 1;
  // How long a rank waits for the others, when connecting and in every collective.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

// One rank of one or several processes, on its own GPU. Waits until all ranks have connected;
// CommError after the timeout.
std::unique_ptr<Communicator> make_nccl_rank(Device& device, const NcclRankOptions& options);

// All ranks in this process.
std::unique_ptr<Group> make_nccl_group(const std::vector<Device*>& devices,
                                       std::chrono::milliseconds timeout);

}  // namespace lockstep
