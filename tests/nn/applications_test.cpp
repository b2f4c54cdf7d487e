#include "lockstep/nn/applications/applications.h"

#include <gtest/gtest.h>

#include <numeric>

#include "golden/ops.h"
#include "lockstep/base/error.h"
#include "nn/running.h"

namespace lockstep {
namespace {

std::int64_t count(const std::vector<VariableRef>& variables) {
  return std::accumulate(variables.begin(), variables.end(), std::int64_t{0},
                         [](std::int64_t sum, const VariableRef& variable) {
                           return sum + variable->shape.elements();
                         });
}

// The index among torchvision's ResNets (golden/make_ops.py), and the depth.
class ResNetParameters : public testing::TestWithParam<std::pair<std::size_t, int>> {};

TEST_P(ResNetParameters, AreAsManyAsInTorchvision) {
  const auto [place, depth] = GetParam();
  const std::int64_t parameters = golden::op("resnet/parameters").values<std::int64_t>()[place];
  const auto network = applications::resnet({.depth = depth});
  EXPECT_EQ(count(network->trainable_variables()), parameters);
  EXPECT_EQ(network->name(), "resnet" + std::to_string(depth));
}

INSTANTIATE_TEST_SUITE_P(Depths, ResNetParameters,
                         testing::Values(std::pair{0u, 18}, std::pair{1u, 34}, std::pair{2u, 50},
                                         std::pair{3u, 101}, std::pair{4u, 152}));

TEST(ResNet, RefusesOtherDepths) {
  EXPECT_ERROR(applications::resnet({.depth = 20}), UsageError, "18, 34, 50, 101, 152");
}

TEST(ResNet, HasPyTorchsStrides) {
  const auto network = applications::resnet({.depth = 50});
  Graph graph;
  const Value image = graph.input("image", {DType::F32, {1, 224, 224, 3}});
  network->trace({&image, 1}, {.training = true});
  const auto shape_of = [&](const std::string& layer, Op op) {
    for (const Node& node : graph.nodes()) {
      if (node.name == layer && node.op == op) return graph.type(node.outputs[0]).shape;
    }
    return Shape{};
  };
  EXPECT_EQ(shape_of("conv1", Op::Conv2D), (Shape{1, 112, 112, 64}));
  EXPECT_EQ(shape_of("maxpool", Op::MaxPool), (Shape{1, 56, 56, 64}));
  EXPECT_EQ(shape_of("layer2_0_conv1", Op::Conv2D), (Shape{1, 56, 56, 128}));
  EXPECT_EQ(shape_of("layer2_0_conv2", Op::Conv2D), (Shape{1, 28, 28, 128}));
  EXPECT_EQ(shape_of("layer4_2_conv3", Op::Conv2D), (Shape{1, 7, 7, 2048}));
}

TEST(ResNet, HasAStemForSmallImages) {
  const auto network = applications::resnet({.depth = 18,
                                             .input_shape = {32, 32, 3},
                                             .dtype = DType::U8,
                                             .classes = 10,
                                             .small_input = true});
  EXPECT_EQ(count(network->trainable_variables()), 11'173'962);
  Graph graph;
  const Value image = graph.input("image", {DType::U8, {2, 32, 32, 3}});
  EXPECT_EQ(network->trace({&image, 1}, {}).type(), (ValueType{DType::F32, {2, 10}}));
}

TEST(LeNet, HasTheSizeOfTheBenchmark) {
  EXPECT_EQ(count(applications::lenet()->trainable_variables()),
            9 * 32 + 32 + 9 * 32 * 64 + 64 + 7 * 7 * 64 * 128 + 128 + 1280 + 10);
}

TEST(MLP, HasTheSizeOfTheBenchmark) {
  EXPECT_EQ(count(applications::mlp()->trainable_variables()), 784 * 128 + 128 + 1280 + 10);
  EXPECT_EQ(count(applications::mlp({.hidden = {}})->trainable_variables()), 7850);
}

TEST(LeNet, GivesLogitsForABatch) {
  const auto network = applications::lenet({.dtype = DType::U8});
  Graph graph;
  const Value image = graph.input("image", {DType::U8, {2, 28, 28, 1}});
  graph.output("logits", network->trace({&image, 1}, {}));
  State state(host(), 1);
  Tensor pixels(DType::U8, {2, 28, 28, 1});
  for (std::size_t i = 0; i < 784; ++i) pixels.values<std::uint8_t>()[i] = i % 256;
  const Tensor logits = run_step(std::move(graph), {{"image", pixels}}, state)["logits"];
  ASSERT_EQ(logits.shape(), (Shape{2, 10}));
  EXPECT_NE(logits.values<float>()[0], 0);
  expect_near(logits.rows(1, 1), std::vector<double>(10, 0.0));
}

}  // namespace
}  // namespace lockstep
