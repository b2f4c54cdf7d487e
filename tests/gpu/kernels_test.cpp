// Compares every op case on the GPU with the reference.
#include "gpu/gpu.h"
#include "kernels/cases_conv.h"
#include "kernels/cases_elementwise.h"
#include "kernels/cases_matmul.h"
#include "kernels/cases_norm.h"
#include "kernels/cases_pool.h"
#include "kernels/cases_random.h"
#include "kernels/cases_reduce.h"
#include "kernels/cases_shape.h"
#include "kernels/cases_softmax.h"
#include "kernels/cases_update.h"
#include "kernels/drawn_cases.h"
#include "kernels/op_case_check.h"

#define LOCKSTEP_GPU_CASES(Family, cases)                                                         \
  class Gpu##Family##Cases : public ::testing::TestWithParam<lockstep::OpCase> {};                \
  TEST_P(Gpu##Family##Cases, AgreeWithTheReference) {                                             \
    LOCKSTEP_NEEDS_GPU();                                                                         \
    lockstep::expect_agreement(GetParam(), lockstep::gpu_kernels(), lockstep::gpu());             \
  }                                                                                               \
  TEST_P(Gpu##Family##Cases, AgreeInSixteenBits) {                                                \
    LOCKSTEP_NEEDS_GPU();                                                                         \
    for (const lockstep::DType dtype : {lockstep::DType::F16, lockstep::DType::BF16}) {           \
      lockstep::expect_agreement_in(GetParam(), dtype, lockstep::gpu_kernels(), lockstep::gpu()); \
    }                                                                                             \
  }                                                                                               \
  INSTANTIATE_TEST_SUITE_P(All, Gpu##Family##Cases, ::testing::ValuesIn(cases), lockstep::case_name)

// Random cases may amplify rounding without bound, so they are compared in f32 only.
#define LOCKSTEP_GPU_DRAWN_CASES(Family, cases)                                       \
  class Gpu##Family##Cases : public ::testing::TestWithParam<lockstep::OpCase> {};    \
  TEST_P(Gpu##Family##Cases, AgreeWithTheReference) {                                 \
    LOCKSTEP_NEEDS_GPU();                                                             \
    lockstep::expect_agreement(GetParam(), lockstep::gpu_kernels(), lockstep::gpu()); \
  }                                                                                   \
  INSTANTIATE_TEST_SUITE_P(All, Gpu##Family##Cases, ::testing::ValuesIn(cases), lockstep::case_name)

// Products of f32 on tensor cores have ten bits of mantissa. Large cases with an activation are
// checked without their gradient, which jumps if rounding changes the sign of a sum.
#define LOCKSTEP_GPU_TF32_CASES(Family, cases)                                             \
  class Gpu##Family##CasesInTf32 : public ::testing::TestWithParam<lockstep::OpCase> {};   \
  TEST_P(Gpu##Family##CasesInTf32, AgreeToAThousandth) {                                   \
    LOCKSTEP_NEEDS_GPU();                                                                  \
    lockstep::OpCase op_case = GetParam();                                                 \
    op_case.tolerance = 1e-3;                                                              \
    if (op_case.name.starts_with("dense_")) op_case.differentiable = false;                \
    lockstep::expect_agreement(op_case, lockstep::gpu_kernels_in_tf32(), lockstep::gpu()); \
  }                                                                                        \
  INSTANTIATE_TEST_SUITE_P(All, Gpu##Family##CasesInTf32, ::testing::ValuesIn(cases),      \
                           lockstep::case_name)

namespace lockstep {

LOCKSTEP_GPU_CASES(Conv, conv_cases());
LOCKSTEP_GPU_CASES(Elementwise, elementwise_cases());
LOCKSTEP_GPU_CASES(MatMul, matmul_cases());
LOCKSTEP_GPU_CASES(Norm, norm_cases());
LOCKSTEP_GPU_CASES(Pool, pool_cases());
LOCKSTEP_GPU_CASES(Random, random_cases());
LOCKSTEP_GPU_CASES(Reduce, reduce_cases());
LOCKSTEP_GPU_CASES(Shape, shape_cases());
LOCKSTEP_GPU_CASES(Softmax, softmax_cases());
LOCKSTEP_GPU_CASES(Update, update_cases());
LOCKSTEP_GPU_TF32_CASES(Conv, conv_cases());
LOCKSTEP_GPU_TF32_CASES(MatMul, matmul_cases());
LOCKSTEP_GPU_DRAWN_CASES(Rounding, round_cases());
LOCKSTEP_GPU_DRAWN_CASES(DrawnConv, drawn_conv_cases());
LOCKSTEP_GPU_DRAWN_CASES(DrawnElementwise, drawn_elementwise_cases());
LOCKSTEP_GPU_DRAWN_CASES(DrawnMatMul, drawn_matmul_cases());
LOCKSTEP_GPU_DRAWN_CASES(DrawnNorm, drawn_norm_cases());
LOCKSTEP_GPU_DRAWN_CASES(DrawnPool, drawn_pool_cases());
LOCKSTEP_GPU_DRAWN_CASES(DrawnSoftmax, drawn_softmax_cases());

}  // namespace lockstep
