// ClusterSpec: this process's place in a job of several workers, as whatever started it says.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// The chief is worker 0: it also writes checkpoints, logs and results. An evaluator is outside the
// job: it follows the checkpoints.
enum class Role { Chief, Worker, Evaluator, ParameterServer };

struct ClusterSpec {
  std::string started_by = {};  // "TF_CONFIG", "Slurm", "Open MPI", …, for messages
  Role role = Role::Chief;
  int worker = 0;   // among the workers, the chief being the first; of other roles, its index
  int workers = 1;  // the chief included
  // Where the control plane is served, "host:port" or "[v6]:port". Empty: this job has one worker,
  // or this process is an evaluator.
  std::string control_address = {};
  // Whether this process serves it; otherwise the chief or the launcher does.
  bool serves_control = false;
  // Its number among the workers of its host, and how many they are; -1: not known.
  int local_worker = -1;
  int local_workers = -1;
  // Cores that it was given per worker; 0: not said.
  int cores = 0;
  // What whatever started it can do about a worker that has failed: start it again (Restart), or at
  // least leave the others alone (Shrink). Otherwise all end.
  bool can_restart = false;
  bool can_shrink = false;
  // What the user should be told before training starts, one sentence each.
  std::vector<std::string> remarks = {};
};

}  // namespace lockstep
