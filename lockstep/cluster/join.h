// join: this process becomes a worker of its job. The members are kept by the control plane, which
// the chief serves where nobody else does (ClusterSpec::serves_control), or by an etcd, where the
// spec's control address is one of an etcd (etcd_address.h).
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "lockstep/cluster/cluster_spec.h"
#include "lockstep/cluster/control/control_server.h"
#include "lockstep/cluster/environment.h"
#include "lockstep/comm/membership.h"

namespace lockstep {

struct JoinOptions {
  // Proves that a process belongs to the job; empty: only workers on this host can join.
  std::string secret = {};
  TlsFiles tls = {};
  // The server's timeouts (ControlServerOptions), where this process serves the control plane.
  std::chrono::milliseconds heartbeat_timeout{5000};
  std::chrono::milliseconds progress_timeout{60'000};
  // What comes after a failure. UsageError where the launcher, which serves the control plane, says
  // something else.
  OnFailure on_failure = OnFailure::Stop;
  // How long to wait for the other workers.
  std::chrono::milliseconds join_timeout{300'000};
};

// Collective: returns when all workers have joined. Destroying the result leaves the job; the chief
// first waits a moment for the others to leave, so that its end does not look like a failure.
std::shared_ptr<Membership> join(const ClusterSpec& spec, const JoinOptions& options);

// The job's secret, as `lockstep launch` passes it (LOCKSTEP_SECRET_FD, a descriptor that is read
// once and closed) or as a file holds it (LOCKSTEP_SECRET_FILE); empty: there is none. UsageError
// where it cannot be read.
std::string job_secret(const Environment& environment = process_environment());

}  // namespace lockstep
