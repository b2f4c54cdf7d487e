// What the resolvers share: a worker's number among all and on its host, and the address of the
// control plane. resolvers.h says by which rules.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/cluster/cluster_spec.h"
#include "lockstep/cluster/environment.h"

namespace lockstep {

inline constexpr int kMaxWorkers = 1 << 20;

// The names of a launcher's variables; empty: it has none for this.
struct NumberVariables {
  std::string_view worker;
  std::string_view workers;
  std::string_view local_worker = {};
  std::string_view local_workers = {};
};

// The worker with these numbers; the chief serves if there are several. UsageError if the first two
// are not both set, or if numbers contradict one another.
ClusterSpec numbered(const Environment& environment, std::string started_by,
                     const NumberVariables& names);

// Sets local_worker and local_workers, which may be unknown, after comparing them with the rest.
void set_local(ClusterSpec& spec, std::optional<int> local_worker,
               std::optional<int> local_workers);

bool on_one_host(const ClusterSpec& spec);

// 15000 + hash % 17000.
std::uint16_t hashed_port(std::string_view job);

// Where the chief runs and listens as far as the launcher says.
struct ControlPlace {
  std::optional<std::string> host = {};
  std::optional<std::uint16_t> port = {};
};

// Sets the control address by the rules of resolvers.h: nothing for one worker. UsageError, which
// asks for MASTER_ADDR or MASTER_PORT, if a half of it is not known.
void set_control(ClusterSpec& spec, const Environment& environment, const ControlPlace& place);

// The first node of Slurm's allocation, if there is one.
std::optional<std::string> first_allocated_node(const Environment& environment);

// Whether this process is a task of a step that srun started, and not a batch script or a shell.
bool in_slurm_step(const Environment& environment);

}  // namespace lockstep
