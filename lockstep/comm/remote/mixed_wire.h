// A wire over shared memory between the workers of a host, and over another one between hosts.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/shared/ring_wire.h"
#include "lockstep/comm/wire.h"

namespace lockstep {

struct MixedWireOptions {
  MakeWire between_hosts = {};
  Store* store = nullptr;
  std::string prefix = "rings";  // of the keys in the store: one for each group
  int worker = 0;
  int workers = 1;
  std::vector<int> host = {};  // the workers of this host, this one too, in order
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

// That of `between_hosts` where this worker is alone on its host.
MakeWire mixed_wires(const MixedWireOptions& options);

}  // namespace lockstep
