// A wire over Gloo: TCP connections between all workers.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "lockstep/comm/port_range.h"
#include "lockstep/comm/store.h"
#include "lockstep/comm/wire.h"

namespace lockstep {

struct GlooOptions {
  Store* store = nullptr;       // where workers find one another's addresses
  std::string prefix = "gloo";  // of the keys in the store: one for each group
  int worker = 0;
  int workers = 1;
  // Where this worker listens: an address or a host name, IPv4 or IPv6; or the name of a network
  // interface. One of them is given.
  std::string address = {};
  std::string interface = {};
  // Where it listens until all are connected: a port for each other worker. With a range, each of
  // these connections also has a thread of its own, as Gloo has one for each of its devices.
  PortRange ports = {};
  // How long the workers wait for one another until all are connected.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

bool has_gloo();
// UsageError if this build has no Gloo.
MakeWire gloo_wires(const GlooOptions& options);

}  // namespace lockstep
