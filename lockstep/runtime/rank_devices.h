// The devices of the ranks of this process, made from their names.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/device/device.h"

namespace lockstep {

struct RankDevices {
  std::vector<std::unique_ptr<Device>> devices;
  // Whether each rank has a thread of its own, pinned to its device's cores. A GPU that is alone is
  // driven by whichever thread asks for it.
  bool threaded = true;
  // Whether the caller's own thread can run the first rank: its device is a single core. A device
  // of several cores has OpenMP threads that belong to the thread that runs it.
  bool caller_runs_first = false;
};

// Devices by name: "cpu:0", "cpu:1", or "cuda:0", "cuda:1", or "cuda:0/0", "cuda:0/1". The cores
// are split into `logical_cpus` devices (0: one more than the highest number that is named).
// UsageError where a name is unknown, or stands twice, or where CPUs and GPUs are mixed.
// `cores`: those that this process uses; empty: all that it may.
RankDevices make_rank_devices(const std::vector<std::string>& names, int logical_cpus,
                              const std::vector<int>& cores = {});

// Into how many logical devices the cores are split when these are named: one more than the highest
// number; 0 for GPUs. UsageError for names of anything else.
int logical_cpus_for(const std::vector<std::string>& names);

}  // namespace lockstep
