// Which addresses lead to a control server or an etcd, and which one this host has on the way.
#pragma once

#include <chrono>
#include <string>

#include "lockstep/cluster/address.h"

namespace lockstep {

struct BindAddress {
  std::string host;  // in digits
  bool loopback = false;
};
// The interface's address that the host name stands for; UsageError if there is none.
BindAddress resolve_to_bind(const std::string& host);

struct Reached {
  std::string target;  // the other end, in digits: "10.0.0.1:4711"
  std::string local;   // the address of this end
};
// Connects and disconnects, to learn which addresses work. Throws CommError at the deadline, or at
// once where nobody listens.
Reached reach(const Address& address, std::chrono::steady_clock::time_point deadline);

}  // namespace lockstep
