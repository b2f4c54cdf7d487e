#include <fmt/format.h>

#include "lockstep/cluster/control/control_server.h"

namespace lockstep {

std::string control_version() {
  return fmt::format("control 1, Lockstep {}", LOCKSTEP_VERSION);
}

}  // namespace lockstep
