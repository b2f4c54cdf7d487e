#include "lockstep/cluster/failure_policy.h"

#include <array>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/cluster/in_quotes.h"

namespace lockstep {
namespace {

constexpr std::array<const char*, 3> kNames = {"stop", "restart", "shrink"};

std::optional<OnFailure> policy_of(const Environment& environment) {
  const std::optional<std::string> text = environment.find("LOCKSTEP_ON_FAILURE");
  if (!text) return std::nullopt;
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (*text == kNames[i]) return static_cast<OnFailure>(i);
  }
  fail<UsageError>("LOCKSTEP_ON_FAILURE={}: give stop, restart or shrink", in_quotes(*text));
}

}  // namespace

OnFailure failure_policy(const ClusterSpec& spec, std::optional<OnFailure> asked,
                         Transport transport, const Environment& environment) {
  if (!asked) asked = policy_of(environment);
  const OnFailure policy = asked.value_or(OnFailure::Stop);
  if (policy == OnFailure::Stop) return policy;
  const char* const name = kNames[static_cast<std::size_t>(policy)];
  require(transport != Transport::Mpi,
          "[strategy] on_failure = {}: processes that talk over MPI all end when one does; use "
          "stop, or another transport",
          name);
  const bool can = policy == OnFailure::Restart ? spec.can_restart : spec.can_shrink;
  require(can, "[strategy] on_failure = {}: {} {}; use {}", name, spec.started_by,
          spec.can_shrink ? "does not start a worker again" : "ends all workers when one fails",
          spec.can_shrink ? "stop or shrink" : "stop");
  return policy;
}

}  // namespace lockstep
