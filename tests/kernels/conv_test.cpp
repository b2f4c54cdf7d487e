#include "kernels/cases_conv.h"

#include "kernels/evaluate.h"
#include "kernels/op_case_check.h"

namespace lockstep {
namespace {

LOCKSTEP_OP_CASES(Conv, conv_cases());

using Inputs = std::span<const Value>;

Tensor random_floats(Shape shape, std::uint64_t stream) {
  Tensor tensor(DType::F32, std::move(shape));
  fill(tensor, {}, 7, stream);
  return tensor;
}

// Convolution by definition, one term at a time, in double.
Tensor by_definition(const Tensor& x, const Tensor& filter, const Shape& result,
                     const ConvOptions& options) {
  Tensor y(DType::F32, result);
  const auto at = [](const Tensor& t, std::int64_t a, std::int64_t b, std::int64_t c,
                     std::int64_t d) {
    const Shape& s = t.shape();
    return static_cast<double>(
        t.values<float>()[static_cast<std::size_t>(((a * s[1] + b) * s[2] + c) * s[3] + d)]);
  };
  const std::int64_t in = filter.shape()[2];
  const std::int64_t out = filter.shape()[3] / options.groups;
  std::size_t place = 0;
  for (std::int64_t n = 0; n < result[0]; ++n) {
    for (std::int64_t row = 0; row < result[1]; ++row) {
      for (std::int64_t column = 0; column < result[2]; ++column) {
        for (std::int64_t o = 0; o < result[3]; ++o) {
          double sum = 0;
          for (std::int64_t i = 0; i < filter.shape()[0]; ++i) {
            const std::int64_t y_in =
                row * options.strides[0] - options.padding[0] + i * options.dilations[0];
            for (std::int64_t j = 0; j < filter.shape()[1]; ++j) {
              const std::int64_t x_in =
                  column * options.strides[1] - options.padding[2] + j * options.dilations[1];
              const bool inside =
                  y_in >= 0 && y_in < x.shape()[1] && x_in >= 0 && x_in < x.shape()[2];
              for (std::int64_t k = 0; inside && k < in; ++k) {
                sum += at(x, n, y_in, x_in, o / out * in + k) * at(filter, i, j, k, o);
              }
            }
          }
          y.values<float>()[place++] = static_cast<float>(sum);
        }
      }
    }
  }
  return y;
}

TEST(ConvKernels, TheReferenceFollowsTheDefinition) {
  struct Row {
    Shape image, filter;
    ConvOptions options;
  };
  const std::vector<Row> rows{
      {{2, 6, 7, 4}, {3, 2, 4, 5}, {.strides = {2, 1}, .padding = {1, 0, 2, 1}}},
      {{1, 9, 9, 4}, {3, 3, 2, 6}, {.dilations = {2, 3}, .groups = 2}},
      {{2, 5, 5, 6}, {3, 3, 1, 6}, {.padding = {1, 1, 1, 1}, .groups = 6}},
      {{2, 5, 5, 3}, {2, 2, 1, 9}, {.groups = 3}}};
  for (const Row& row : rows) {
    const Tensor x = random_floats(row.image, 1);
    const Tensor filter = random_floats(row.filter, 2);
    const Tensor y =
        evaluate({x, filter}, [&](Inputs in) { return conv2d(in[0], in[1], row.options); });
    EXPECT_LT(relative_error(y, by_definition(x, filter, y.shape(), row.options)), 1e-6)
        << row.image.str() << row.filter.str();
  }
}

TEST(Padding, SameMatchesTensorFlow) {
  const Shape image{1, 5, 6, 3};
  EXPECT_EQ(resolve_padding("same", image, {3, 3}, {1, 1}), (Padding{1, 1, 1, 1}));
  // An odd row or column goes to the bottom or right.
  EXPECT_EQ(resolve_padding("same", image, {2, 4}, {1, 1}), (Padding{0, 1, 1, 2}));
  EXPECT_EQ(resolve_padding("same", image, {3, 3}, {2, 2}), (Padding{1, 1, 0, 1}));
  EXPECT_EQ(resolve_padding("same", image, {1, 1}, {2, 2}), (Padding{0, 0, 0, 0}));
  EXPECT_EQ(resolve_padding("same", image, {3, 3}, {1, 1}, {2, 2}), (Padding{2, 2, 2, 2}));
  EXPECT_EQ(resolve_padding("valid", image, {3, 3}, {2, 2}), (Padding{0, 0, 0, 0}));
  EXPECT_THROW(resolve_padding("full", image, {3, 3}, {1, 1}), UsageError);
}

std::string refusal(Shape image, Shape filter, ConvOptions options = {}) {
  Graph graph;
  const Graph::NameScope scope(graph, "conv_1");
  const Value x = graph.input("x", {DType::F32, std::move(image)});
  const Value f = graph.input("f", {DType::F32, std::move(filter)});
  try {
    conv2d(x, f, options);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ConvKernels, MismatchesAreRefusedWithBothShapes) {
  EXPECT_EQ(refusal({1, 8, 8, 3}, {3, 3, 4, 8}),
            "[conv2d] conv_1: the filter (3, 3, 4, 8) takes 4 channels, but the image "
            "(1, 8, 8, 3) has 3 in each of 1 group(s)");
  EXPECT_EQ(refusal({1, 8, 8, 3}, {3, 3, 1, 8}, {.groups = 2}),
            "[conv2d] conv_1: 2 groups do not divide the channels: image (1, 8, 8, 3), filter "
            "(3, 3, 1, 8)");
  EXPECT_EQ(refusal({1, 2, 8, 3}, {5, 5, 3, 8}, {.padding = {1, 1, 0, 0}}),
            "[conv2d] conv_1: the height of the window, 5, is more than that of the padded image, "
            "4: image (1, 2, 8, 3), filter (5, 5, 3, 8)");
  EXPECT_NE(refusal({8, 8, 3}, {3, 3, 3, 8}).find("(N, H, W, C)"), std::string::npos);
  EXPECT_NE(refusal({1, 8, 8, 3}, {3, 3, 3, 8}, {.strides = {0, 1}}).find("stride 0"),
            std::string::npos);
}

TEST(ConvKernels, OnlyRequestedGradientsAreBuilt) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {1, 8, 8, 3}});
  const Value filter = graph.input("f", {DType::F32, {3, 3, 3, 8}});
  const Value bias = graph.input("b", {DType::F32, {8}});
  const Value y = conv2d(x, filter, bias);
  gradients(y, std::vector<Value>{filter, bias});
  int of_input = 0;
  int of_filter = 0;
  int sums = 0;
  for (const Node& node : graph.nodes()) {
    of_input += node.op == Op::Conv2DGradInput;
    of_filter += node.op == Op::Conv2DGradFilter;
    sums += node.op == Op::ReduceSum;
  }
  EXPECT_EQ(of_input, 0);
  EXPECT_EQ(of_filter, 1);
  EXPECT_EQ(sums, 0);
}

TEST(ConvKernels, TheConvolutionAndBothGradientsCostTheSame) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {2, 8, 8, 4}});
  const Value filter = graph.input("f", {DType::F32, {3, 3, 2, 6}});
  const ConvOptions options{.groups = 2};
  const Value y = conv2d(x, filter, options);
  const double flops = 2.0 * 2 * 6 * 6 * 6 * 3 * 3 * 2;
  EXPECT_EQ(cost_of(graph, graph.nodes().back()).flops, flops);
  conv2d_grad_input(y, filter, x.shape(), options);
  EXPECT_EQ(cost_of(graph, graph.nodes().back()).flops, flops);
  conv2d_grad_filter(x, y, filter.shape(), true, options);
  EXPECT_EQ(cost_of(graph, graph.nodes().back()).flops, flops);
}

}  // namespace
}  // namespace lockstep
