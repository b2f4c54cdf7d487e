// The golden trajectories on the CPU.
#include <gtest/gtest.h>

#include "kernels/fusing_kernels.h"
#include "train/golden.h"

namespace lockstep::golden {
namespace {

struct GoldenLibrary {
  std::string name;
  const KernelLibrary& (*get)();
};
const std::vector<GoldenLibrary> kLibraries = {
    {"reference", reference_kernels}, {"cpu", cpu_kernels}, {"fused", fusing_kernels}};

using GoldenCase = std::tuple<std::size_t, std::size_t, std::size_t>;  // indices into the lists
class Golden : public ::testing::TestWithParam<GoldenCase> {};

TEST_P(Golden, LossesAndWeightsFollowPyTorch) {
  const auto [model, rule, library] = GetParam();
  expect_golden(kModels[model], kOptimizers[rule], kLibraries[library].get(), host());
}

std::string case_name(const ::testing::TestParamInfo<GoldenCase>& info) {
  const auto [model, rule, library] = info.param;
  return kModels[model].name + "_" + kOptimizers[rule].name + "_" + kLibraries[library].name;
}

INSTANTIATE_TEST_SUITE_P(, Golden,
                         ::testing::Combine(::testing::Range<std::size_t>(0, kModels.size()),
                                            ::testing::Range<std::size_t>(0, kOptimizers.size()),
                                            ::testing::Range<std::size_t>(0, kLibraries.size())),
                         case_name);

}  // namespace
}  // namespace lockstep::golden
