// A spec as one line, for tests and for the program that prints it.
#pragma once

#include <string>

#include "lockstep/cluster/cluster_spec.h"

namespace lockstep {

inline std::string role_text(Role role) {
  switch (role) {
    case Role::Chief:
      return "chief";
    case Role::Worker:
      return "worker";
    case Role::Evaluator:
      return "evaluator";
    case Role::ParameterServer:
      return "ps";
  }
  return "?";
}

// "Slurm: worker 1 of 4 at n1:5000, local 1 of 2, 8 cores"; a process that serves has "serves" for
// "at".
inline std::string spec_text(const ClusterSpec& spec) {
  std::string text = spec.started_by + ": " + role_text(spec.role) + " " +
                     std::to_string(spec.worker) + " of " + std::to_string(spec.workers);
  if (!spec.control_address.empty()) {
    text += (spec.serves_control ? " serves " : " at ") + spec.control_address;
  } else if (spec.serves_control) {
    text += " serves nowhere";
  }
  if (spec.local_worker >= 0 || spec.local_workers >= 0) {
    text += ", local " + std::to_string(spec.local_worker) + " of " +
            std::to_string(spec.local_workers);
  }
  if (spec.cores > 0) text += ", " + std::to_string(spec.cores) + " cores";
  return text;
}

}  // namespace lockstep
