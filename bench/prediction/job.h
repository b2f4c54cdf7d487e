// Runs the program `lockstep` for predictions and measurements, alone or on several hosts.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hosts/hosts.h"
#include "temporary_folder.h"

namespace lockstep {

using Words = std::vector<std::string>;

class Jobs {
 public:
  Jobs();
  // What `lockstep … --json` writes. std::runtime_error with the program's output if it fails.
  nlohmann::json run(const Words& words) const;
  // A worker on each of these addresses, the w-th on host w and core w of those that this process
  // may use; what the first one writes. `program`: this one instead of lockstep.
  nlohmann::json run_on_hosts(const Hosts& hosts, const Words& addresses, const Words& words,
                              const std::string& program = {}) const;
  std::string file(const std::string& name) const { return (folder_ / name).string(); }

 private:
  TemporaryFolder folder_;
  std::vector<int> cores_;  // of this process when it was made
};

// The step time that a result holds for so many replicas.
double step_ms(const nlohmann::json& result, int replicas);
// The part of the time for which other programs had the cores of these replicas, at most; 0 if it
// is not known.
double disturbance(const nlohmann::json& result, int replicas);
// The link from worker 0 to worker 1, as `--network` takes it: measured by `devices --cluster`.
std::string measured_network(const Jobs& jobs, const Hosts& hosts, const Words& addresses);

}  // namespace lockstep
