// WorkerLinks: how the workers of a job reach one another. It makes the groups of their ranks.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/membership.h"
#include "lockstep/comm/port_range.h"
#include "lockstep/comm/shared/shared_host.h"
#include "lockstep/comm/wire.h"

namespace lockstep {

struct WorkerGroupOptions {
  // Names of all ranks, in their order, for messages.
  std::vector<std::string> names = {};
  // How many ranks each worker holds: the first ones belong to worker 0.
  std::vector<int> ranks_of_worker = {};
  // How long a rank waits for the others.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

class WorkerLinks {
 public:
  virtual ~WorkerLinks() = default;
  virtual int worker() const = 0;
  virtual int workers() const = 0;
  // "shared memory", "Gloo", "MPI"; "Gloo, shared memory within a host".
  virtual std::string transport() const = 0;
  // The number of this worker among those of its host, and how many they are.
  virtual int local_worker() const = 0;
  virtual int local_workers() const = 0;
  // Collective and ordered: the n-th call of every worker makes the same group. CommError, naming
  // those who are missing, after the timeout. A group may outlive the links.
  virtual std::unique_ptr<Group> make_group(const WorkerGroupOptions& options) = 0;
  // The bare wire that its groups use, for measuring it; null where the workers share memory.
  // Collective and ordered as make_group.
  virtual std::unique_ptr<Wire> make_wire(std::chrono::milliseconds timeout) = 0;
};

// What carries bytes between workers. Auto: shared memory where all workers are on one host and can
// map the same memory, else Gloo. Where workers are on several hosts, Gloo and MPI carry bytes
// between hosts only, unless the workers of a host cannot map the same memory. They carry plain
// bytes: whoever can read the network can read them.
enum class Transport { Auto, SharedMemory, Gloo, Mpi };

// Processes of one host that already share memory.
std::unique_ptr<WorkerLinks> make_shared_links(std::shared_ptr<SharedHost> host);

struct WorkerLinksOptions {
  Transport transport = Transport::Auto;
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  std::string prefix = "links";  // of their keys in the store: another one for each
  PortRange ports = {};          // that Gloo listens on
};

// Collective over the members: they find out who is on which host, and agree on a transport.
// UsageError, on all of them, where the one that was asked for cannot be used.
std::unique_ptr<WorkerLinks> make_worker_links(std::shared_ptr<Membership> membership,
                                               const WorkerLinksOptions& options);

}  // namespace lockstep
