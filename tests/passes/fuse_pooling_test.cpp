// Convolutions fused with max pooling, and filter gradients fused with its gradient: when they are
// fused, that results do not change, and when they must not be.
#include "lockstep/passes/fuse_pooling.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/autodiff/gradients.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/passes/pipeline.h"
#include "passes/graph_checks.h"

namespace lockstep {
namespace {

// The reference as a library that offers fused pooling.
const KernelLibrary& pooling_reference() {
  static const KernelLibrary library = [] {
    KernelLibrary result;
    for (const Op op : {Op::Conv2D, Op::Conv2DGradFilter}) {
      result.add(op, {.name = "interpreted.pooling",
                      .make =
                          [](const KernelCall& call) {
                            return reference_kernels().make(call.graph, call.node);
                          },
                      .workspace_bytes =
                          [](const KernelCall& call) {
                            return reference_kernels().workspace_bytes(call.graph, call.node);
                          },
                      .offers = [](const KernelCall&,
                                   std::string_view extra) { return extra == "pool"; }});
    }
    add_reference_kernels(result);
    return result;
  }();
  return library;
}

// The graph after a library's passes, after comparing the library's results with the reference.
Graph fused(const Graph& graph, const KernelLibrary& library) {
  Graph result = clone(graph);
  optimize(result, library);
  const auto expected = run_on_random_inputs(clone(graph), reference_kernels());
  const auto actual = run_on_random_inputs(clone(result), library);
  for (const auto& [name, want] : expected) {
    const auto x = actual.at(name).values<float>();
    const auto y = want.values<float>();
    for (std::size_t i = 0; i < y.size(); ++i) {
      EXPECT_NEAR(x[i], y[i], 1e-4 * (1 + std::abs(y[i]))) << name << " " << i;
    }
  }
  return result;
}

struct Layer {
  Shape image, filter;
  PoolOptions pool = {};
};

// conv2d → relu → max_pool, with the gradients of the filter and the bias, and optionally of the
// image.
Graph layer(const Layer& form, bool of_image = false) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, form.image});
  const Value w = graph.input("w", {DType::F32, form.filter});
  const Value b = graph.input("b", {DType::F32, Shape{form.filter[3]}});
  const Value y = max_pool(activation(conv2d(x, w, b), "relu"), form.pool);
  const Value weights = graph.input("weights", {DType::F32, y.shape()});
  std::vector<Value> parameters{w, b};
  if (of_image) parameters.push_back(x);
  const std::vector<Value> grads = gradients(reduce_sum(mul(y, weights)), parameters);
  graph.output("y", y);
  for (std::size_t i = 0; i < grads.size(); ++i) graph.output(fmt::format("d{}", i), grads[i]);
  return graph;
}

bool has_onednn() {
  Graph graph;
  const Value y = conv2d(graph.input("x", {DType::F32, Shape{1, 4, 4, 1}}),
                         graph.input("w", {DType::F32, Shape{1, 1, 1, 1}}));
  return cpu_kernels().find({graph, graph.producer(y.id())}).name.starts_with("onednn");
}

class FusePoolingOf : public ::testing::TestWithParam<Layer> {};

TEST_P(FusePoolingOf, AFirstLayerStoresNoUnpooledImage) {
  std::vector<const KernelLibrary*> libraries{&pooling_reference()};
  if (has_onednn()) libraries.push_back(&cpu_kernels());
  for (const KernelLibrary* library : libraries) {
    const Graph result = fused(layer(GetParam()), *library);
    EXPECT_EQ(count(result, Op::MaxPool), 0) << print(result);
    EXPECT_EQ(count(result, Op::MaxPoolGrad), 0) << print(result);
  }
}

// Seven and six images, in blocks of eight and sixteen channels; windows that tile the image, leave
// a remainder, or overlap; images that are computed four and one at a time.
INSTANTIATE_TEST_SUITE_P(
    All, FusePoolingOf,
    ::testing::Values(Layer{{7, 10, 10, 1}, {3, 3, 1, 16}}, Layer{{6, 11, 9, 1}, {3, 3, 1, 32}},
                      Layer{{3, 9, 9, 1}, {2, 2, 1, 32}, {.window = {3, 3}}},
                      Layer{
                          {2, 8, 8, 1}, {5, 5, 1, 16}, {.window = {3, 3}, .padding = {1, 1, 1, 1}}},
                      Layer{{64, 28, 28, 1}, {3, 3, 1, 32}}, Layer{{2, 62, 62, 1}, {3, 3, 1, 16}}));

// Layers whose channels do not fill a block stay unchanged, whatever this machine's block size.
class NotFusedOf : public ::testing::TestWithParam<Layer> {};

TEST_P(NotFusedOf, LayersGiveTheSameResults) {
  const Graph result = fused(layer(GetParam()), cpu_kernels());
  EXPECT_EQ(count(result, Op::MaxPool), 1) << print(result);
  EXPECT_EQ(count(result, Op::MaxPoolGrad), 1) << print(result);
}

INSTANTIATE_TEST_SUITE_P(All, NotFusedOf,
                         ::testing::Values(Layer{{8, 12, 12, 1}, {3, 3, 1, 20}},
                                           Layer{{8, 12, 12, 2}, {3, 3, 2, 5}},
                                           Layer{{4, 40, 40, 1},
                                                 {3, 3, 1, 16},
                                                 {.window = {16, 17}, .strides = {4, 4}}}));

TEST(FusePooling, ALayerWhoseImageNeedsAGradientUnpoolsOnce) {
  const Graph graph = layer({{4, 10, 10, 1}, {3, 3, 1, 16}}, true);
  const Graph result = fused(graph, pooling_reference());
  EXPECT_EQ(count(result, Op::MaxPool), 0);
  EXPECT_EQ(count(result, Op::MaxPoolGrad), 1);  // both gradients read it
}

TEST(FusePooling, AResultThatIsReadElsewhereStays) {
  Graph graph;
  const Value y = conv2d(graph.input("x", {DType::F32, Shape{2, 6, 6, 1}}),
                         graph.input("w", {DType::F32, Shape{3, 3, 1, 8}}));
  graph.output("y", y);
  graph.output("pooled", max_pool(y));
  EXPECT_EQ(count(fused(graph, pooling_reference()), Op::MaxPool), 1);
}

TEST(FusePooling, NothingIsFusedForABackendThatDoesNotOfferIt) {
  const Graph result = fused(layer({{4, 10, 10, 1}, {3, 3, 1, 16}}), reference_kernels());
  EXPECT_EQ(count(result, Op::MaxPool), 1);
  EXPECT_EQ(count(result, Op::MaxPoolGrad), 1);
}

}  // namespace
}  // namespace lockstep
