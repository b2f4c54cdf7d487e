#include "kernels/drawn_cases.h"
#include "kernels/op_case_check.h"

namespace lockstep {
namespace {

class DrawnCases : public testing::TestWithParam<OpCase> {};
TEST_P(DrawnCases, CpuKernelsAgreeWithTheReference) {
  expect_agreement(GetParam());
}

class SomeDrawnCases : public testing::TestWithParam<OpCase> {};
TEST_P(SomeDrawnCases, GradientsMatchFiniteDifferences) {
  expect_gradients(GetParam());
}

#define LOCKSTEP_DRAWN_CASES(Family, cases)                                                 \
  INSTANTIATE_TEST_SUITE_P(Family, DrawnCases, testing::ValuesIn(cases), case_name);        \
  INSTANTIATE_TEST_SUITE_P(Family, SomeDrawnCases, testing::ValuesIn(few_and_small(cases)), \
                           case_name)

LOCKSTEP_DRAWN_CASES(MatMul, drawn_matmul_cases());
LOCKSTEP_DRAWN_CASES(Conv, drawn_conv_cases());
LOCKSTEP_DRAWN_CASES(Pool, drawn_pool_cases());
LOCKSTEP_DRAWN_CASES(Norm, drawn_norm_cases());
LOCKSTEP_DRAWN_CASES(Softmax, drawn_softmax_cases());
LOCKSTEP_DRAWN_CASES(Elementwise, drawn_elementwise_cases());

}  // namespace
}  // namespace lockstep
