// The devices of all ranks of a job: what the workers tell one another about theirs, and what they
// can train on together.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/device/device.h"

namespace lockstep {

struct JobDevice {
  std::string name;
  std::string gpu = {};  // the UUID of its GPU; empty for CPUs, or where it is unknown
};

// The devices of a worker as text, and back.
std::string describe(const std::vector<Device*>& devices);
std::vector<JobDevice> parse_job_devices(std::string_view text);

// UsageError, the same on all workers, unless all devices are CPUs, or all are GPUs and every rank
// has its own. `share_gpus`: ranks of different workers may share one.
void check_job_devices(const std::vector<std::vector<JobDevice>>& of_worker, bool share_gpus);

}  // namespace lockstep
