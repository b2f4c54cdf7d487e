// Fusions that only the GPU's kernels offer (ops/norm.h, ops/conv.h): a convolution that computes
// the statistics of the next norm, a mask in bits, a norm that pools, lists of casts. They must be
// used and correct.
#include "gpu/gpu.h"
#include "kernels/op_case_check.h"

namespace lockstep {
namespace {

// relu(norm(conv(x)) (+ residual)), large enough for algorithms to be measured.
OpCase block(const char* name, bool residual, std::int64_t channels) {
  return {.name = name,
          .inputs = {f32({8, 28, 28, 64}), f32_uniform({3, 3, 64, channels}, -0.1, 0.1),
                     f32_positive({channels}), f32({channels}), f32({8, 28, 28, channels})},
          .build =
              [residual](Graph&, CaseInputs in) {
                const Value x = conv2d(in[0], in[1], {.padding = {1, 1, 1, 1}});
                const BatchNormResult norm = batch_norm(x, in[2], in[3]);
                const Value y = relu(residual ? add(norm.y, in[4]) : mul(norm.y, in[4]));
                return std::vector<Value>{y, norm.mean, norm.variance};
              },
          .turns_signs = true};
}

Graph optimized(const OpCase& op_case, DType dtype) {
  Graph graph = build_mixed_graph(op_case, dtype);
  optimize(graph, gpu_kernels());
  return graph;
}

int count(const Graph& graph, Op op, const char* attribute) {
  return static_cast<int>(std::ranges::count_if(
      graph.nodes(), [&](const Node& node) { return node.op == op && node.attrs.has(attribute); }));
}

TEST(GpuExtras, AResidualBlockKeepsItsMaskInBitsAndAgreesWithTheCpu) {
  LOCKSTEP_NEEDS_GPU();
  const OpCase residual = block("residual_block", true, 64);
  for (const DType dtype : {DType::F16, DType::BF16}) {
    SCOPED_TRACE(name_of(dtype));
    const Graph graph = optimized(residual, dtype);
    EXPECT_EQ(count(graph, Op::BatchNorm, "bits"), 1) << print(graph);
    EXPECT_EQ(count(graph, Op::BatchNormGrad, "bits"), 1);
    expect_agreement_in(residual, dtype, gpu_kernels(), gpu());
  }
}

TEST(GpuExtras, ChannelsThatDoNotFillBytesGetNoMaskInBits) {
  LOCKSTEP_NEEDS_GPU();
  const OpCase odd = block("odd_block", true, 36);
  EXPECT_EQ(count(optimized(odd, DType::F16), Op::BatchNorm, "bits"), 0);
  expect_agreement_in(odd, DType::F16, gpu_kernels(), gpu());
}

// relu(norm(conv(x)) + norm(conv(x))), followed by a sum, so that its gradient has two summands.
OpCase projected_block(const char* name, std::int64_t channels) {
  return {.name = name,
          .inputs = {f32({8, 28, 28, 64}), f32_uniform({3, 3, 64, channels}, -0.1, 0.1),
                     f32_positive({channels}), f32({channels}),
                     f32_uniform({1, 1, 64, channels}, -0.3, 0.3), f32_positive({channels}),
                     f32({channels}), f32({8, 28, 28, channels})},
          .build =
              [](Graph&, CaseInputs in) {
                const Value x = conv2d(in[0], in[1], {.padding = {1, 1, 1, 1}});
                const BatchNormResult main = batch_norm(x, in[2], in[3]);
                const BatchNormResult shortcut = batch_norm(conv2d(in[0], in[4]), in[5], in[6]);
                const Value y = relu(add(main.y, shortcut.y));
                return std::vector<Value>{add(y, mul(y, in[7])), main.mean, main.variance,
                                          shortcut.mean, shortcut.variance};
              },
          .tolerance = 1e-4,
          .turns_signs = true};
}

TEST(GpuExtras, ABlockWithAProjectionIsOneNormForwardAndBackwardAndAgreesWithTheCpu) {
  LOCKSTEP_NEEDS_GPU();
  const OpCase even = projected_block("projected_block", 64);
  const OpCase odd = projected_block("odd_projected_block", 36);
  for (const DType dtype : {DType::F16, DType::BF16}) {
    SCOPED_TRACE(name_of(dtype));
    EXPECT_EQ(count(optimized(even, dtype), Op::BatchNormGrad, "projection"), 1);
    expect_agreement_in(even, dtype, gpu_kernels(), gpu());
    expect_agreement_in(odd, dtype, gpu_kernels(), gpu());
  }
  expect_agreement(even, gpu_kernels(), gpu());
  expect_agreement(odd, gpu_kernels(), gpu());
}

// The same with images as inputs, so that only our kernels run: relu(norm(a) + norm(b)) if
// projected, otherwise relu(norm(a) + b).
OpCase norms_of_images(bool projected, std::int64_t channels) {
  const Shape image{8, 28, 28, channels};
  return {.name = projected ? "projected_images" : "residual_images",
          .inputs = {f32(image), f32_positive({channels}), f32({channels}), f32(image),
                     f32_positive({channels}), f32({channels}), f32(image)},
          .build =
              [projected](Graph&, CaseInputs in) {
                const BatchNormResult main = batch_norm(in[0], in[1], in[2]);
                const BatchNormResult shortcut = batch_norm(in[3], in[4], in[5]);
                const Value y = relu(add(main.y, projected ? shortcut.y : in[3]));
                return std::vector<Value>{add(y, mul(y, in[6])), main.mean, main.variance,
                                          shortcut.mean, shortcut.variance};
              },
          .tolerance = 1e-4,
          .turns_signs = true};
}

TEST(GpuExtras, NormsOfInputImagesAreFusedAndAgreeWithTheCpu) {
  LOCKSTEP_NEEDS_GPU();
  for (const bool projected : {true, false}) {
    for (const std::int64_t channels : {64, 36}) {
      const OpCase images = norms_of_images(projected, channels);
      SCOPED_TRACE(images.name + " " + std::to_string(channels));
      const Graph graph = optimized(images, DType::F16);
      if (channels == 64) {
        EXPECT_EQ(count(graph, Op::BatchNormGrad, "projection"), projected ? 1 : 0);
      }
      for (const DType dtype : {DType::F16, DType::BF16}) {
        expect_agreement_in(images, dtype, gpu_kernels(), gpu());
      }
      expect_agreement(images, gpu_kernels(), gpu());
    }
  }
}

// max_pool(relu(norm(x))); if `summed`, followed by a sum, so that its gradient has two summands.
// Gamma has both signs. In 16 bits many elements of x are equal.
OpCase pooled_norm(const char* name, const Shape& x, PoolOptions options, bool summed) {
  const Shape channels{x[3]};
  return {
      .name = name,
      .inputs = {f32_uniform(x, 1024, 1088), f32(channels), f32(channels)},
      .build =
          [options, summed](Graph&, CaseInputs in) {
            const BatchNormResult norm = batch_norm(in[0], in[1], in[2]);
            const Value y = max_pool(relu(norm.y), options);
            return std::vector<Value>{summed ? add(y, mul(y, in[2])) : y, norm.mean, norm.variance};
          },
      .tolerance = 1e-4};
}

TEST(GpuExtras, NormAndPoolingAreFusedForwardAndBackwardAndAgreeWithTheCpu) {
  LOCKSTEP_NEEDS_GPU();
  const PoolOptions overlapping{.window = {3, 3}, .strides = {2, 2}, .padding = {1, 1, 1, 1}};
  const PoolOptions uneven{.window = {3, 3}, .strides = {2, 2}, .padding = {0, 1, 0, 1}};
  for (const OpCase& pooled : {pooled_norm("overlapping", {5, 22, 31, 24}, overlapping, true),
                               pooled_norm("large", {16, 56, 56, 64}, overlapping, true),
                               pooled_norm("several_tiles", {3, 16, 9, 160}, uneven, false),
                               pooled_norm("apart", {4, 12, 12, 64}, {}, true),
                               pooled_norm("rows_of_no_window", {4, 13, 11, 64}, {}, false)}) {
    SCOPED_TRACE(pooled.name);
    for (const DType dtype : {DType::F16, DType::BF16}) {
      SCOPED_TRACE(name_of(dtype));
      const Graph graph = optimized(pooled, dtype);
      EXPECT_EQ(count(graph, Op::BatchNorm, "pool"), 1) << print(graph);
      EXPECT_EQ(count(graph, Op::BatchNormGrad, "pool"), 1);
      expect_agreement_in(pooled, dtype, gpu_kernels(), gpu());
    }
    expect_agreement(pooled, gpu_kernels(), gpu());
  }
}

TEST(GpuExtras, UnsupportedWindowsAndChannelsArePooledSeparately) {
  LOCKSTEP_NEEDS_GPU();
  const PoolOptions wide{.window = {5, 5}, .strides = {2, 2}, .padding = {2, 2, 2, 2}};
  for (const OpCase& pooled : {pooled_norm("wide", {4, 12, 12, 64}, wide, true),
                               pooled_norm("odd_channels", {4, 12, 12, 35}, {}, true)}) {
    SCOPED_TRACE(pooled.name);
    const Graph graph = optimized(pooled, DType::F16);
    EXPECT_EQ(count(graph, Op::BatchNorm, "pool"), 0) << print(graph);
    expect_agreement_in(pooled, DType::F16, gpu_kernels(), gpu());
  }
}

TEST(GpuExtras, AConvolutionsStatisticsAreThoseOfItsResult) {
  LOCKSTEP_NEEDS_GPU();
  // As the pass would write it, whether it pays off or not.
  OpCase given = block("statistics", false, 64);
  given.differentiable = false;
  given.build = [](Graph& graph, CaseInputs in) {
    const Value image = cast(in[0], DType::F16);
    const Value filter = cast(in[1], DType::F16);
    Attrs attrs{{"strides", Ints{1, 1}},
                {"dilations", Ints{1, 1}},
                {"padding", Ints{1, 1, 1, 1}},
                {"groups", std::int64_t{1}},
                {"statistics", true}};
    const auto conv = graph.add(Op::Conv2D, std::vector<Value>{image, filter}, attrs);
    return std::vector<Value>{cast(conv[0], DType::F32), conv[1], conv[2]};
  };
  OpCase separate = given;
  separate.build = [](Graph&, CaseInputs in) {
    const Value y = conv2d(in[0], in[1], {.padding = {1, 1, 1, 1}});
    return std::vector<Value>{y, reduce_sum(y, {.axes = {0, 1, 2}}),
                              reduce_sum(square(y), {.axes = {0, 1, 2}})};
  };
  CaseRun have(given, build_graph(given, DType::F32).graph, gpu_kernels(), gpu());
  CaseRun want(separate, build_graph(separate, DType::F32).graph, cpu_kernels());
  round_inputs(have.executor(), DType::F16);
  round_inputs(want.executor(), DType::F16);
  have.run();
  want.run();
  expect_close(have, want, 1e-2);
}

TEST(GpuExtras, ManyCastsInOneLaunchRoundLikeSingleOnes) {
  LOCKSTEP_NEEDS_GPU();
  for (const DType dtype : {DType::F16, DType::BF16}) {
    SCOPED_TRACE(name_of(dtype));
    OpCase casts{.name = "casts", .inputs = {}, .build = {}, .differentiable = false};
    for (const std::int64_t n : {1, 7, 8, 9, 0, 16384, 16385, 100003}) {
      for (int copy = 0; copy < 20; ++copy) casts.inputs.push_back(f32({n + copy % 2}));
    }
    OpCase listed = casts;
    listed.build = [dtype](Graph& graph, CaseInputs in) {
      const auto attrs = [](DType to) { return Attrs{{"dtype", std::string(name_of(to))}}; };
      const std::vector<Value> all(in.begin(), in.end());
      return graph.add(Op::Cast, graph.add(Op::Cast, all, attrs(dtype)), attrs(DType::F32));
    };
    casts.build = [dtype](Graph&, CaseInputs in) {
      std::vector<Value> values;
      for (const Value& x : in) values.push_back(cast(cast(x, dtype), DType::F32));
      return values;
    };
    CaseRun have(listed, build_graph(listed, DType::F32).graph, gpu_kernels(), gpu());
    CaseRun want(casts, build_graph(casts, DType::F32).graph, reference_kernels());
    have.run();
    want.run();
    expect_close(have, want, 0.0);
  }
}

// relu(x w + b) v: a mask between two products.
OpCase two_layers(const char* name, Shape x, std::int64_t hidden, std::int64_t results) {
  const std::int64_t inputs = x[1];
  return {.name = name,
          .inputs = {f32(std::move(x)), f32_uniform({inputs, hidden}, -0.2, 0.2), f32({hidden}),
                     f32_uniform({hidden, results}, -0.2, 0.2)},
          .build =
              [](Graph&, CaseInputs in) {
                const Value y = relu(matmul(in[0], in[1], in[2]));
                return std::vector<Value>{matmul(y, in[3])};
              },
          .tolerance = 1e-4,
          .turns_signs = true};
}

TEST(GpuExtras, TwoLayersAgreeWithTheCpuWhetherTheirMaskIsInBitsOrNot) {
  LOCKSTEP_NEEDS_GPU();
  const OpCase even = two_layers("two_layers", {32, 784}, 128, 10);
  const OpCase wide = two_layers("two_wide_layers", {256, 512}, 1024, 512);
  const OpCase odd = two_layers("two_odd_layers", {30, 37}, 132, 10);
  for (const OpCase* each : {&even, &wide, &odd}) {
    for (const DType dtype : {DType::F16, DType::BF16}) {
      SCOPED_TRACE(name_of(dtype));
      expect_agreement_in(*each, dtype, gpu_kernels(), gpu());
    }
    expect_agreement(*each, gpu_kernels(), gpu());
  }
}

// As the pass would write it, whether it pays off or not.
TEST(GpuExtras, AMaskInBitsIsThatOfReluAfterAProduct) {
  LOCKSTEP_NEEDS_GPU();
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    for (const std::int64_t hidden : {8, 128, 136, 1024}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(dtype), hidden));
      OpCase given{.name = "masked",
                   .inputs = {f32({32, 64}), f32_uniform({64, hidden}, -0.2, 0.2), f32({hidden}),
                              f32({32, 24}), f32_uniform({hidden, 24}, -0.2, 0.2)},
                   .build = {},
                   .differentiable = false};
      OpCase separate = given;
      given.build = [dtype](Graph& graph, CaseInputs in) {
        const auto own = [&](std::size_t i) { return cast(in[i], dtype); };
        const auto product = graph.add(Op::MatMul, std::vector<Value>{own(0), own(1), own(2)},
                                       {{"transpose_a", false},
                                        {"transpose_b", false},
                                        {"activation", std::string("relu")},
                                        {"alpha", 0.2},
                                        {"bits", true}});
        const auto masked =
            graph.add(Op::MatMul, std::vector<Value>{own(3), own(4), product[1]},
                      {{"transpose_a", false}, {"transpose_b", true}, {"masked", true}});
        return std::vector<Value>{cast(product[0], DType::F32), cast(masked[0], DType::F32)};
      };
      separate.build = [](Graph&, CaseInputs in) {
        const Value y = relu(matmul(in[0], in[1], in[2]));
        const Value dy = matmul(in[3], in[4], {.transpose_b = true});
        return std::vector<Value>{y, activation_grad(dy, y, "relu", 0.2)};
      };
      CaseRun have(given, build_graph(given, DType::F32).graph, gpu_kernels(), gpu());
      CaseRun want(separate, build_graph(separate, DType::F32).graph, cpu_kernels());
      if (dtype != DType::F32) {
        round_inputs(have.executor(), dtype);
        round_inputs(want.executor(), dtype);
      }
      have.run();
      want.run();
      expect_close(have, want, dtype == DType::F32 ? 1e-4 : 2e-2);
    }
  }
}

}  // namespace
}  // namespace lockstep
