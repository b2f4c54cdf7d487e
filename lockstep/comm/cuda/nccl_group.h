// Ranks on GPUs of their own, over NCCL: those of one process as a group, or one of several
// processes. NCCL is opened when the first of them is made.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep {

// Names the ranks that belong together; one process makes it and hands it to the others.
std::string make_nccl_id();

struct NcclRankOptions {
  std::string id;  // of make_nccl_id
  int rank = 0;
  int size = 1;
  // How long a rank waits for the others, to come together and in every collective.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

// One rank of one or several processes, on a GPU of its own. Waits until all ranks are there;
// CommError behind the timeout.
std::unique_ptr<Communicator> make_nccl_rank(Device& device, const NcclRankOptions& options);

// All ranks in this process.
std::unique_ptr<Group> make_nccl_group(const std::vector<Device*>& devices,
                                       std::chrono::milliseconds timeout);

}  // namespace lockstep
