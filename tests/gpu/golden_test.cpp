// The golden trajectories on the GPU.
#include "train/golden.h"
#include "gpu/gpu.h"

namespace lockstep::golden {
namespace {

using GpuGoldenCase = std::tuple<std::size_t, std::size_t>;  // indices into the lists
class GpuGolden : public ::testing::TestWithParam<GpuGoldenCase> {};

TEST_P(GpuGolden, LossesAndWeightsFollowPyTorch) {
  LOCKSTEP_NEEDS_GPU();
  const auto [model, rule] = GetParam();
  expect_golden(kModels[model], kOptimizers[rule], gpu_kernels(), gpu());
}

std::string case_name(const ::testing::TestParamInfo<GpuGoldenCase>& info) {
  const auto [model, rule] = info.param;
  return kModels[model].name + "_" + kOptimizers[rule].name;
}

INSTANTIATE_TEST_SUITE_P(, GpuGolden,
                         ::testing::Combine(::testing::Range<std::size_t>(0, kModels.size()),
                                            ::testing::Range<std::size_t>(0, kOptimizers.size())),
                         case_name);

}  // namespace
}  // namespace lockstep::golden
