// Recomputation on small graphs: what is copied and where it runs, the bits, the memory of chains,
// and what budgets choose.
#include "lockstep/passes/recompute.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "lockstep/autodiff/gradients.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/recomputed.h"
#include "lockstep/passes/pipeline.h"
#include "lockstep/passes/recompute_choice.h"
#include "lockstep/passes/recompute_segments.h"
#include "passes/graph_checks.h"
#include "zero_variable.h"

namespace lockstep {
namespace {

std::size_t planned_peak(Graph graph, const Backend& backend) {
  return make_plan(std::move(graph), backend).peak_bytes();
}

Graph recomputed(Graph graph, const Recompute& recompute, std::size_t memory = 0) {
  optimize(graph, cpu_kernels());
  RecomputePass(cpu_kernels(),
                {.recompute = recompute, .memory_bytes = memory, .peak = planned_peak})
      .run(graph);
  verify(graph);
  return graph;
}

Recompute budget(std::size_t bytes) {
  return Recompute(std::to_string(bytes) + "B");
}

// n products with ReLU, of which the activations are much larger than the parameters, and the
// gradients of all. A layer's name says whether it is marked.
Graph deep_chain(int layers, const std::function<std::string(int)>& name_of = {}) {
  Graph graph;
  Value x = graph.input("x", {DType::F32, {512, 8}});
  std::vector<Value> targets;
  for (int n = 0; n < layers; ++n) {
    const std::string name = name_of ? name_of(n) : "dense_" + std::to_string(n);
    const Graph::NameScope scope(graph, name);
    targets.push_back(graph.input("kernel_" + std::to_string(n), {DType::F32, {8, 8}}));
    x = relu(matmul(x, targets.back()));
  }
  const std::vector<Value> grads = gradients(reduce_sum(x), targets);
  for (std::size_t n = 0; n < grads.size(); ++n) graph.output("g" + std::to_string(n), grads[n]);
  return graph;
}

// Two convolutions with batch norm, a residual connection, pooling and layer norm; all inputs are
// fed, so that gradients are not zero.
Graph small_network() {
  Graph graph;
  const Value images = graph.input("images", {DType::F32, {8, 12, 12, 8}});
  std::vector<Value> parameters;
  const auto parameter = [&](const std::string& name, const Shape& shape) {
    parameters.push_back(graph.input(name, {DType::F32, shape}));
    return parameters.back();
  };
  const auto block = [&](Value x, const std::string& name) {
    const Graph::NameScope scope(graph, name);
    const Value y = conv2d(x, parameter(name + "_kernel", {3, 3, 8, 8}), {.padding = {1, 1, 1, 1}});
    return batch_norm(y, parameter(name + "_gamma", {8}), parameter(name + "_beta", {8})).y;
  };
  Value x = relu(block(images, "a"));
  x = relu(add(block(x, "b"), x));
  x = relu(add(block(x, "c"), x));
  x = relu(block(x, "d"));
  x = layer_norm(x, parameter("gamma", {8}), parameter("beta", {8}));
  const std::vector<Value> grads = gradients(reduce_sum(square(x)), parameters);
  for (std::size_t n = 0; n < grads.size(); ++n) graph.output("g" + std::to_string(n), grads[n]);
  return graph;
}

int copies_in(const Graph& graph) {
  return static_cast<int>(std::ranges::count_if(graph.nodes(), is_recomputed));
}

double copied_flops(const Graph& graph) {
  double flops = 0;
  for (const Node& node : graph.nodes()) {
    if (is_recomputed(node)) flops += cost_of(graph, node).flops;
  }
  return flops;
}

void expect_same_results(Graph a, Graph b) {
  const auto x = run_on_random_inputs(std::move(a), cpu_kernels());
  const auto y = run_on_random_inputs(std::move(b), cpu_kernels());
  ASSERT_EQ(x.size(), y.size());
  for (const auto& [name, tensor] : x) EXPECT_TRUE(tensor.same_bits(y.at(name))) << name;
}

TEST(RecomputePasses, NothingChangesWithoutIt) {
  EXPECT_EQ(copies_in(recomputed(small_network(), "none")), 0);
}

TEST(RecomputePasses, BlocksGiveTheSameBits) {
  const Graph with = recomputed(small_network(), "blocks");
  EXPECT_GT(copies_in(with), 0) << print(with);
  expect_same_results(recomputed(small_network(), "none"), clone(with));
}

TEST(RecomputePasses, EveryPointThatABudgetMayChooseGivesTheSameBits) {
  Graph graph = recomputed(small_network(), "none");
  const RecomputeAnalysis analysis(graph, cpu_kernels());
  const std::vector<RecomputePoint> points = recompute_points(analysis);
  ASSERT_GE(points.size(), 4u);
  EXPECT_EQ(copies_in(analysis.write(points.front().selection)), 0);
  for (const RecomputePoint& point : points) {
    expect_same_results(clone(graph), analysis.write(point.selection));
  }
}

TEST(RecomputePasses, EveryNodeIsCopiedAtMostOnceAndJustBeforeAReader) {
  const Graph graph = recomputed(deep_chain(16), "blocks");
  std::set<std::string> names;
  bool copying = false;
  int regions = 0;
  for (const Node& node : graph.nodes()) {
    if (is_recomputed(node)) {
      EXPECT_TRUE(names.insert(node.name).second) << node.name;
      if (!copying) ++regions;
    } else if (copying) {
      const bool reads = std::ranges::any_of(
          node.inputs, [&](ValueId id) { return is_recomputed(graph.producer(id)); });
      EXPECT_TRUE(reads) << node.name << " follows copies that it does not read";
    }
    copying = is_recomputed(node);
  }
  EXPECT_GE(regions, 2) << "all was computed again at once";
}

TEST(RecomputePasses, TheMemoryOfADeepChainGrowsWithItsSquareRoot) {
  const auto arena = [](int layers, const char* recompute) {
    return static_cast<double>(
        make_plan(recomputed(deep_chain(layers), recompute), cpu_kernels()).arena_bytes);
  };
  for (const int layers : {16, 64}) {
    EXPECT_GT(arena(4 * layers, "none"), 3.5 * arena(layers, "none")) << layers;
    EXPECT_LT(arena(4 * layers, "blocks"), 2.2 * arena(layers, "blocks")) << layers;
  }
  EXPECT_LT(arena(256, "blocks"), arena(256, "none") / 5);
}

TEST(RecomputePasses, MoreBudgetNeverCostsMoreWorkAndLessNeverTakesMoreMemory) {
  for (const auto& make : {small_network, +[] { return deep_chain(24); }}) {
    const std::size_t whole = planned_peak(recomputed(make(), "none"), cpu_kernels());
    std::size_t smaller_peak = 0;
    double smaller_work = std::numeric_limits<double>::infinity();
    int met = 0;
    std::set<std::size_t> peaks;
    for (std::size_t bytes = whole / 4; bytes <= whole + whole / 20; bytes += whole / 40) {
      Graph graph;
      try {
        graph = recomputed(make(), budget(bytes));
      } catch (const UsageError&) {
        EXPECT_EQ(met, 0) << "a smaller budget than " << bytes << " was met";
        continue;
      }
      ++met;
      const double work = copied_flops(graph);
      const std::size_t peak = planned_peak(std::move(graph), cpu_kernels());
      EXPECT_LE(peak, bytes);
      EXPECT_GE(peak, smaller_peak);
      EXPECT_LE(work, smaller_work);
      smaller_peak = peak;
      smaller_work = work;
      peaks.insert(peak);
    }
    EXPECT_GE(met, 8);
    EXPECT_GE(peaks.size(), 4u);
    EXPECT_EQ(smaller_peak, whole);
    EXPECT_EQ(smaller_work, 0);
  }
}

TEST(RecomputePasses, AutoTakesTheMemoryOfTheDevice) {
  const std::size_t whole = planned_peak(recomputed(deep_chain(24), "none"), cpu_kernels());
  EXPECT_EQ(copies_in(recomputed(deep_chain(24), "auto", whole)), 0);
  const Graph tight = recomputed(deep_chain(24), "auto", whole * 2 / 3);
  EXPECT_GT(copies_in(tight), 0);
  EXPECT_LE(planned_peak(clone(tight), cpu_kernels()), whole * 2 / 3);
}

TEST(RecomputePasses, ABudgetThatCannotBeMetIsToldTheSmallestPeak) {
  std::string message;
  try {
    recomputed(deep_chain(24), "1KiB");
  } catch (const UsageError& error) {
    message = error.what();
  }
  EXPECT_NE(message.find("--accumulate"), std::string::npos) << message;
  EXPECT_NE(message.find("--precision"), std::string::npos) << message;
  const std::string before = "it needs ";
  const std::size_t at = message.find(before);
  ASSERT_NE(at, std::string::npos) << message;
  const double mebibytes = std::stod(message.substr(at + before.size()));
  const auto bytes = static_cast<std::size_t>(mebibytes * (1 << 20));
  EXPECT_LE(planned_peak(recomputed(deep_chain(24), budget(bytes)), cpu_kernels()), bytes);
}

TEST(RecomputePasses, OfMarkedLayersOnlyInputsAndOutputsAreKept) {
  const auto name = [](int n) {
    const std::string block = "block_" + std::to_string(n / 4) + "/@checkpoint/";
    return (n / 4 == 1 ? block : "") + "dense_" + std::to_string(n);
  };
  const Graph graph = recomputed(deep_chain(12, name), "blocks");
  std::set<std::string> copies;
  for (const Node& node : graph.nodes()) {
    if (is_recomputed(node)) copies.insert(node.name.substr(node.name.rfind('/') + 1));
  }
  EXPECT_EQ(copies, (std::set<std::string>{"dense_4.again", "dense_5.again", "dense_6.again"}));
  // Nothing of the backward pass reads the originals.
  for (const Node& node : graph.nodes()) {
    if (!is_gradient(node)) continue;
    for (ValueId id : node.inputs) {
      const std::string& producer = graph.producer(id).name;
      EXPECT_FALSE(producer.ends_with("dense_4") || producer.ends_with("dense_5") ||
                   producer.ends_with("dense_6"))
          << node.name << " reads " << producer;
    }
  }
  expect_same_results(recomputed(deep_chain(12, name), "none"), clone(graph));
}

TEST(RecomputePasses, CollectivesAndAssignmentsAreNotRepeated) {
  Graph graph;
  Value x = graph.input("x", {DType::F32, {256, 8}});
  const VariableRef average = zero_variable("average", {8});
  std::vector<Value> targets;
  for (int n = 0; n < 12; ++n) {
    const Graph::NameScope scope(graph, "dense_" + std::to_string(n));
    targets.push_back(graph.variable(zero_variable("kernel_" + std::to_string(n), {8, 8})));
    x = relu(matmul(x, targets.back()));
    if (n != 5) continue;
    // Statistics over all ranks, as synchronised batch norm has them, and their moving average.
    const Value mean = all_reduce(reduce_mean(x, {.axes = {0}}));
    assign(average, mean);
    x = sub(x, mean);
  }
  const std::vector<Value> grads = gradients(reduce_sum(x), targets);
  for (std::size_t n = 0; n < grads.size(); ++n) graph.output("g" + std::to_string(n), grads[n]);
  const int collectives = count(graph, Op::AllReduce);
  RecomputePass(cpu_kernels(), {.recompute = "blocks", .peak = planned_peak}).run(graph);
  EXPECT_GT(copies_in(graph), 4);
  EXPECT_EQ(count(graph, Op::AllReduce), collectives);
  EXPECT_EQ(count(graph, Op::Assign), 1);
}

TEST(RecomputePasses, AGraphWithoutGradientsHasNoBudget) {
  Graph graph;
  graph.output("y", relu(graph.input("x", {DType::F32, {64, 64}})));
  EXPECT_EQ(copies_in(recomputed(std::move(graph), "1KiB")), 0);
}

}  // namespace
}  // namespace lockstep
