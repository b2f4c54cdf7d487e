#include "lockstep/cluster/cluster_resolver.h"

#include "lockstep/base/error.h"
#include "lockstep/cluster/resolvers.h"

namespace lockstep {
namespace {

// The last of the default ones: a job of one worker.
class AloneResolver : public ClusterResolver {
 public:
  std::string name() const override { return "this process alone"; }
  std::optional<ClusterSpec> resolve() const override {
    return ClusterSpec{.started_by = name(), .local_worker = 0, .local_workers = 1};
  }
};

}  // namespace

FirstOfResolvers::FirstOfResolvers(std::vector<std::shared_ptr<const ClusterResolver>> resolvers)
    : resolvers_(std::move(resolvers)) {
  for (const auto& resolver : resolvers_) {
    require(resolver != nullptr, "[FirstOfResolvers] a resolver is a null pointer");
  }
}

std::string FirstOfResolvers::name() const {
  std::string names;
  for (const auto& resolver : resolvers_) {
    if (!names.empty()) names += ", ";
    names += resolver->name();
  }
  return "the first of: " + names;
}

std::optional<ClusterSpec> FirstOfResolvers::resolve() const {
  for (const auto& resolver : resolvers_) {
    if (std::optional<ClusterSpec> spec = resolver->resolve()) return spec;
  }
  return std::nullopt;
}

std::unique_ptr<ClusterResolver> default_resolver(Environment environment) {
  std::vector<std::shared_ptr<const ClusterResolver>> all = {
      std::make_shared<LockstepResolver>(environment),
      std::make_shared<TFConfigResolver>(environment),
      std::make_shared<PlainResolver>(environment),
      std::make_shared<OpenMpiResolver>(environment),
      std::make_shared<PmiResolver>(environment),
      std::make_shared<KubernetesResolver>(environment),
      std::make_shared<SlurmResolver>(std::move(environment)),
      std::make_shared<AloneResolver>()};
  return std::make_unique<FirstOfResolvers>(std::move(all));
}

}  // namespace lockstep
