#include "lockstep/exec/state.h"

#include <gtest/gtest.h>

#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/ops.h"
#include "zero_variable.h"

namespace lockstep {
namespace {

Tensor counted(const Shape& shape) {
  Tensor tensor(DType::F32, shape);
  const auto values = tensor.values<float>();
  std::iota(values.begin(), values.end(), 1.0f);
  return tensor;
}

TEST(State, AValueComesBackAsItWasWhateverTheLayout) {
  const Shape shape{3, 3, 5, 12};
  const Layout layouts[] = {
      {}, {{3, 2, 0, 1}, {}}, {{3, 2, 0, 1}, {{2, 8}, {3, 8}}}, {{0, 3, 1, 2}, {{3, 8}}}};
  for (const Layout& layout : layouts) {
    State state(host(), 1);
    const VariableRef variable = zero_variable("kernel", shape);
    state.add(variable, layout);
    state.set(*variable, counted(shape));
    EXPECT_TRUE(state.get(*variable).same_bits(counted(shape))) << layout.str();
  }
}

TEST(State, ABlockedLayoutPutsElementsWhereItSays) {
  const VariableRef variable = zero_variable("kernel", Shape{2, 10});
  State state(host(), 1);
  state.add(variable, Layout{{1, 0}, {{1, 8}}});  // blocks of eight columns, then rows, then lanes
  state.set(*variable, counted(variable->shape));
  const auto* memory = reinterpret_cast<const float*>(state.data(*variable));
  EXPECT_EQ(memory[0], 1.0f);        // (0, 0)
  EXPECT_EQ(memory[7], 8.0f);        // (0, 7)
  EXPECT_EQ(memory[8], 11.0f);       // (1, 0)
  EXPECT_EQ(memory[16], 9.0f);       // (0, 8): the second block
  EXPECT_EQ(memory[18], 0.0f);       // padding
  EXPECT_EQ(memory[16 + 8], 19.0f);  // (1, 8)
}

TEST(State, VariablesThatAreUpdatedTogetherLieSideBySide) {
  Graph graph;
  UpdateInputs inputs;
  inputs.rate = graph.scalar(0.1);
  inputs.scale = graph.scalar(1.0);
  inputs.step = graph.scalar(1, DType::I64);
  std::vector<VariableRef> parameters;
  inputs.slots.resize(1);
  for (int i = 0; i < 4; ++i) {
    parameters.push_back(zero_variable(fmt::format("p{}", i), Shape{5 + i}));
    inputs.parameters.push_back(graph.variable(parameters.back()));
    inputs.gradients.push_back(graph.input(fmt::format("g{}", i), {DType::F32, Shape{5 + i}}));
    inputs.slots[0].push_back(graph.variable(zero_variable(fmt::format("v{}", i), Shape{5 + i})));
  }
  update(inputs, "sgd", {{"momentum", 0.9}, {"nesterov", false}});
  State state(host(), 1);
  state.add(graph);
  for (std::size_t i = 1; i < parameters.size(); ++i) {
    EXPECT_EQ(state.data(*parameters[i]) - state.data(*parameters[i - 1]),
              parameters[i - 1]->shape.elements() * 4);
  }
}

TEST(State, AForeignValueIsRefusedByName) {
  const VariableRef variable = zero_variable("dense/kernel", Shape{2, 3});
  State state(host(), 1);
  state.add(variable);
  try {
    state.set(*variable, Tensor(DType::F32, Shape{3, 2}));
    FAIL() << "a (3, 2) value was taken for a (2, 3) variable";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("dense/kernel"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("(3, 2)"), std::string::npos);
  }
}

TEST(State, InitialisersSeeTheSeed) {
  auto variable = std::make_shared<Variable>();
  variable->name = "w";
  variable->shape = Shape{1};
  variable->initializer = [](Tensor& target, std::uint64_t seed) {
    target.values<float>()[0] = static_cast<float>(seed);
  };
  State state(host(), 7);
  state.add(variable);
  EXPECT_EQ(state.get(*variable).item(), 7.0);
}

TEST(State, OfAShardedVariableThereIsOnlyTheSliceOfThisRank) {
  const VariableRef slot = zero_variable("adam/m/kernel", Shape{3, 4});
  const Slice slices[] = {{0, 5}, {5, 5}, {5, 12}};
  for (const Slice& slice : slices) {
    Graph graph;
    graph.output("y", neg(graph.variable(slot, slice)));
    State state(host(), 1);
    state.add(graph);
    EXPECT_TRUE(state.is_sharded(*slot));
    EXPECT_EQ(state.slice(*slot), slice);
    EXPECT_EQ(state.bytes(*slot), slice.size() * sizeof(float));
    state.set(*slot, counted(slot->shape));
    const Tensor here = state.get_slice(*slot);
    for (std::size_t i = 0; i < slice.size(); ++i) {
      EXPECT_EQ(here.values<float>()[i], static_cast<float>(slice.begin + i + 1));
    }
    try {
      state.get(*slot);
      FAIL() << "a slice was taken for the whole variable";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("adam/m/kernel"), std::string::npos);
    }
  }
}

TEST(State, OfAWholeVariableTheSliceIsAllOfIt) {
  const VariableRef kernel = zero_variable("kernel", Shape{2, 3});
  State state(host(), 1);
  state.add(kernel, Layout{{1, 0}, {{1, 8}}});
  state.set(*kernel, counted(kernel->shape));
  EXPECT_FALSE(state.is_sharded(*kernel));
  EXPECT_TRUE(state.get_slice(*kernel).same_bits(counted({6})));
}

}  // namespace
}  // namespace lockstep
