#include "lockstep/runtime/pass_list.h"

#include "lockstep/distribute/place.h"
#include "lockstep/passes/precision.h"

namespace lockstep {

std::vector<std::unique_ptr<Pass>> distribute_passes(std::optional<DType> precision,
                                                     const BucketOptions& options) {
  std::vector<std::unique_ptr<Pass>> passes;
  if (precision) passes.push_back(std::make_unique<MixedPrecision>(*precision));
  passes.push_back(std::make_unique<PlacePass>(PlaceOptions{.ranks = options.ranks}));
  passes.push_back(std::make_unique<BucketPass>(options));
  return passes;
}

std::vector<std::string_view> pass_names(const Backend& backend) {
  std::vector<std::string_view> names;
  for (const auto& pass : distribute_passes(DType::F16, {})) names.push_back(pass->name());
  for (const auto& pass : backend_passes(backend)) names.push_back(pass->name());
  return names;
}

}  // namespace lockstep
