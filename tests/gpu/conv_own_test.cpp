// The fallbacks for convolutions that cuDNN has no engine for (kernels/cuda/conv/conv_direct.h,
// conv_border.h), tested directly: whether cuDNN has one depends on its version and the GPU.
#include "gpu/on_gpu.h"
#include "kernels/evaluate.h"
#include "kernels/op_case_check.h"
#include "lockstep/device/cuda/runtime.h"
#include "lockstep/kernels/cuda/conv/conv_border.h"
#include "lockstep/kernels/cuda/conv/conv_direct.h"

namespace lockstep {
namespace {

struct DirectCase {
  const char* name;
  Shape image;
  Shape filter;  // (kh, kw, in per group, o)
  ConvOptions options;
};

std::vector<DirectCase> direct_cases() {
  return {{"plain", {2, 7, 9, 5}, {3, 3, 5, 6}, {}},
          {"strided_and_padded_unevenly",
           {2, 11, 8, 3},
           {3, 5, 3, 7},
           {.strides = {2, 3}, .padding = {1, 0, 2, 1}}},
          {"dilated", {1, 12, 13, 4}, {3, 2, 4, 5}, {.dilations = {3, 2}, .padding = {2, 2, 1, 1}}},
          {"groups", {2, 6, 6, 6}, {3, 3, 2, 9}, {.padding = {1, 1, 1, 1}, .groups = 3}},
          {"depthwise_with_multiplier",
           {1, 9, 7, 4},
           {3, 3, 1, 8},
           {.strides = {2, 2}, .padding = {1, 1, 1, 1}, .groups = 4}}};
}

ConvProblem problem_of(const DirectCase& c, ConvWay way, DType dtype) {
  const ConvOptions& o = c.options;
  ConvProblem p;
  p.way = way;
  p.dtype = p.filter_dtype = dtype;
  p.n = c.image[0], p.h = c.image[1], p.w = c.image[2], p.c = c.image[3];
  p.kh = c.filter[0], p.kw = c.filter[1], p.in = c.filter[2], p.o = c.filter[3];
  p.groups = o.groups;
  p.stride_h = o.strides[0], p.stride_w = o.strides[1];
  p.dilation_h = o.dilations[0], p.dilation_w = o.dilations[1];
  p.top = o.padding[0], p.bottom = o.padding[1], p.left = o.padding[2], p.right = o.padding[3];
  p.oh = (p.h + p.top + p.bottom - (p.kh - 1) * p.dilation_h - 1) / p.stride_h + 1;
  p.ow = (p.w + p.left + p.right - (p.kw - 1) * p.dilation_w - 1) / p.stride_w + 1;
  return p;
}

class GpuDirectConvolution : public ::testing::TestWithParam<DirectCase> {};

TEST_P(GpuDirectConvolution, MatchesTheReferenceForwardAndBackward) {
  LOCKSTEP_NEEDS_GPU();
  const DirectCase& c = GetParam();
  const auto stream = gpu().make_stream();
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    SCOPED_TRACE(name_of(dtype));
    const double tolerance = dtype == DType::F32 ? 1e-5 : dtype == DType::F16 ? 0x1p-10 : 0x1p-7;
    const ConvProblem forward = problem_of(c, ConvWay::Forward, dtype);
    const Tensor x = drawn(c.image, dtype, 1);
    const Tensor filter = drawn(c.filter, dtype, 2);
    const Tensor dy = drawn(Shape{forward.n, forward.oh, forward.ow, forward.o}, dtype, 3);
    const std::vector<Tensor> want = evaluate_all({x, filter, dy}, [&](CaseInputs in) {
      return std::vector<Value>{conv2d(in[0], in[1], c.options),
                                conv2d_grad_input(in[2], in[1], c.image, c.options),
                                conv2d_grad_filter(in[0], in[2], c.filter, false, c.options)[0]};
    });
    for (const bool first : {false, true}) {
      SCOPED_TRACE(first ? "outputs first" : "row-major");
      const auto image = on_gpu(x, dtype);
      const auto weights = on_gpu(first ? outputs_first(filter) : filter, dtype);
      const auto gradient = on_gpu(dy, dtype);
      const auto run = [&](ConvWay way, const Buffer& one, const Buffer& two, const Tensor& like) {
        ConvProblem p = problem_of(c, way, dtype);
        p.outputs_first = first;
        const auto result = gpu().allocate(like.bytes());
        convolve_directly(p, one.data(), two.data(), result->data(), cuda_stream(*stream));
        stream->synchronize();
        return from_gpu(*result, dtype, like.shape());
      };
      EXPECT_LE(relative_error(run(ConvWay::Forward, *image, *weights, want[0]), want[0]),
                tolerance);
      EXPECT_LE(relative_error(run(ConvWay::GradInput, *gradient, *weights, want[1]), want[1]),
                tolerance);
      const Tensor dw = run(ConvWay::GradFilter, *image, *gradient, want[2]);
      EXPECT_LE(relative_error(first ? outputs_last(dw) : dw, want[2]), tolerance);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GpuDirectConvolution, ::testing::ValuesIn(direct_cases()),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(GpuBorders, AreZerosAroundImagesAndCanBeRemoved) {
  LOCKSTEP_NEEDS_GPU();
  const auto stream = gpu().make_stream();
  for (const Shape& shape : {Shape{2, 5, 7, 3}, Shape{1, 1, 1, 1}, Shape{3, 9, 4, 64}}) {
    for (const DType dtype : {DType::F32, DType::F16}) {
      SCOPED_TRACE(name_of(dtype));
      const Border border{.n = shape[0],
                          .h = shape[1],
                          .w = shape[2],
                          .c = shape[3],
                          .top = 1,
                          .bottom = 2,
                          .left = 0,
                          .right = 3,
                          .element_bytes = size_of(dtype)};
      const Tensor x = drawn(shape, dtype, 1);
      const Tensor want = evaluate({x}, [](CaseInputs in) {
        return pad(in[0], {0, 1, 0, 0}, {0, 2, 3, 0});
      });
      const auto image = on_gpu(x, dtype);
      const auto padded = gpu().allocate(border.padded_bytes());
      const auto back = gpu().allocate(image->bytes());
      border.add(image->data(), padded->data(), cuda_stream(*stream));
      border.remove(padded->data(), back->data(), cuda_stream(*stream));
      stream->synchronize();
      EXPECT_TRUE(from_gpu(*padded, dtype, want.shape()).same_bits(want));
      EXPECT_TRUE(from_gpu(*back, dtype, shape).same_bits(x));
    }
  }
}

TEST(GpuBorders, MatricesAreTransposed) {
  LOCKSTEP_NEEDS_GPU();
  const auto stream = gpu().make_stream();
  for (const Shape& shape : {Shape{1, 1}, Shape{33, 70}, Shape{147, 64}, Shape{5, 1000}}) {
    for (const DType dtype : {DType::F32, DType::F16}) {
      SCOPED_TRACE(name_of(dtype));
      const Tensor x = drawn(shape, dtype, 1);
      const Tensor want = evaluate({x}, [](CaseInputs in) { return transpose(in[0], {1, 0}); });
      const auto from = on_gpu(x, dtype);
      const auto to = gpu().allocate(from->bytes());
      transpose_matrix(from->data(), to->data(), shape[0], shape[1], size_of(dtype),
                       cuda_stream(*stream));
      stream->synchronize();
      EXPECT_TRUE(from_gpu(*to, dtype, want.shape()).same_bits(want));
    }
  }
}

}  // namespace
}  // namespace lockstep
