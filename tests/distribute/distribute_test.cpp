// The passes that distribute a step, and the plan that follows from them.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "lockstep/autodiff/gradients.h"
#include "lockstep/distribute/bucket.h"
#include "lockstep/distribute/place.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/kernels/kernel.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/passes/pipeline.h"
#include "lockstep/plan/plan.h"
#include "zero_variable.h"

namespace lockstep {
namespace {

// Four dense layers with tanh, a squared error, Adam.
struct Traced {
  Graph graph;
  std::vector<VariableRef> parameters;
  Optimizer optimizer;
};

enum class Norms : bool { None, OfGradients };

Traced trace(Optimizer optimizer = Adam(), Norms norms = Norms::None) {
  Traced traced{.graph = {}, .parameters = {}, .optimizer = std::move(optimizer)};
  Graph& graph = traced.graph;
  Value x = graph.input("x", {DType::F32, {8, 32}});
  for (int layer = 0; layer < 4; ++layer) {
    const std::string name = "dense_" + std::to_string(layer);
    const Graph::NameScope scope(graph, name);
    traced.parameters.push_back(zero_variable(name + "/kernel", {32, 32}));
    traced.parameters.push_back(zero_variable(name + "/bias", {32}));
    x = tanh(matmul(x, graph.variable(traced.parameters[traced.parameters.size() - 2])) +
             graph.variable(traced.parameters.back()));
  }
  const Value loss = reduce_sum(square(x));
  std::vector<Value> targets;
  for (const VariableRef& parameter : traced.parameters) {
    targets.push_back(graph.variable(parameter));
  }
  const Value weight = graph.scalar(8.0);  // known before the gradients, as a batch's is
  const std::vector<Value> own = gradients(loss, targets);
  const std::vector<Value> reduced = traced.optimizer.apply(graph, traced.parameters, own, weight);
  graph.output("loss", loss);
  if (norms == Norms::None) return traced;
  graph.output("own", gradient_norm(own));
  graph.output("reduced", gradient_norm(reduced));
  return traced;
}

int count(const Graph& graph, Op op) {
  return static_cast<int>(
      std::ranges::count_if(graph.nodes(), [&](const Node& node) { return node.op == op; }));
}

Graph distributed(Graph graph, int replicas, BucketSizes sizes) {
  std::vector<std::unique_ptr<Pass>> passes;
  passes.push_back(std::make_unique<PlacePass>(PlaceOptions{.ranks = replicas}));
  passes.push_back(std::make_unique<BucketPass>(BucketOptions{.ranks = replicas, .sizes = sizes}));
  run_passes(graph, passes);
  return graph;
}

TEST(Distribute, OneReplicaAddsNothingUp) {
  const Graph graph = distributed(trace().graph, 1, {});
  EXPECT_EQ(count(graph, Op::AllReduce), 0);
  EXPECT_EQ(count(graph, Op::Update), 1);
}

TEST(Distribute, EveryGradientAndTheWeightTravelOnce) {
  const std::size_t kernel = 32 * 32 * 4;
  for (const std::size_t bytes : {std::size_t{1}, kernel, 3 * kernel, std::size_t{1} << 30}) {
    const Graph graph = distributed(trace().graph, 2, {.first_bytes = 64, .bytes = bytes});
    std::multiset<std::string> updated;
    std::size_t values = 0;
    for (const Node& node : graph.nodes()) {
      if (is_bucket(node)) values += node.inputs.size();
      if (node.op != Op::Update) continue;
      const auto parameters = static_cast<std::size_t>(node.attrs.integer("count"));
      for (std::size_t i = 3; i < 3 + parameters; ++i) {
        updated.insert(graph.producer(node.inputs[i]).variable->name);
        const Node& sum = graph.producer(node.inputs[i + parameters]);
        EXPECT_TRUE(is_bucket(sum));
      }
    }
    EXPECT_EQ(values, 8u + 1u);
    EXPECT_EQ(updated.size(), 8u);
    EXPECT_EQ(std::set(updated.begin(), updated.end()).size(), 8u);
  }
}

TEST(Distribute, BucketsStandWhereTheBackwardPassHasFinishedThem) {
  const Graph graph = distributed(trace().graph, 2, {.first_bytes = 1, .bytes = 32 * 32 * 4});
  EXPECT_GE(count(graph, Op::AllReduce), 4);
  EXPECT_EQ(count(graph, Op::AllReduce),
            count(graph, Op::Update));  // the weight is in a bucket, too
  int before_the_last_product = 0;
  int last_product = 0;
  for (int n = 0; n < static_cast<int>(graph.nodes().size()); ++n) {
    if (graph.node(n).op == Op::MatMul) last_product = n;
  }
  for (int n = 0; n < last_product; ++n) before_the_last_product += is_bucket(graph.node(n));
  EXPECT_GE(before_the_last_product, 3);
}

Plan plan_of(Graph graph) {
  optimize(graph, cpu_kernels());
  return make_plan(std::move(graph), cpu_kernels());
}

// Two statistics of the input, each with the number of replicas that had one, update averages.
TEST(Distribute, WhatIsAddedUpAsideTravelsWithGradients) {
  Traced traced = trace();
  Graph& graph = traced.graph;
  const Value x{&graph, graph.inputs().front().second};
  const Value statistics[] = {reduce_sum(x), reduce_sum(square(x))};
  for (const Value& statistic : statistics) {
    const Value values[] = {statistic, graph.scalar(1.0)};
    const std::vector<Value> sums = all_reduce_aside(values);
    const VariableRef average = zero_variable("average", {});
    assign(average, sums[0] / maximum(sums[1], graph.scalar(1.0)));
  }
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{1} << 30}) {
    const Graph together = distributed(clone(graph), 2, {.first_bytes = bytes, .bytes = bytes});
    EXPECT_EQ(count(together, Op::AllReduce), count(together, Op::Update));
    std::size_t values = 0;
    for (const Node& node : together.nodes()) values += is_bucket(node) ? node.inputs.size() : 0;
    EXPECT_EQ(values, 8u + 1u + 2u + 2u);  // gradients, their weight, statistics, counts
    plan_of(clone(together));
  }
}

TEST(Distribute, WhatFollowsFromSumsIsAddedUpBehindThem) {
  Traced traced = trace();
  Graph& graph = traced.graph;
  const Value x{&graph, graph.inputs().front().second};
  const Value statistic = reduce_sum(x);
  const Value first = all_reduce_aside(std::span(&statistic, 1)).front();
  const Value follows = first * statistic;
  const VariableRef average = zero_variable("average", {});
  const Value second = all_reduce_aside(std::span(&follows, 1)).front();
  assign(average, all_reduce_aside(std::span(&second, 1)).front());
  const Graph result = distributed(clone(graph), 2, {.first_bytes = 1 << 30, .bytes = 1 << 30});
  std::vector<std::int64_t> orders;
  std::vector<std::size_t> values;
  for (const Node& node : result.nodes()) {
    if (!is_bucket(node)) continue;
    orders.push_back(node.attrs.integer("order"));
    values.push_back(node.inputs.size());
  }
  EXPECT_EQ(orders, (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(values, (std::vector<std::size_t>{8 + 1 + 1, 1, 1}));
  plan_of(clone(result));
}

TEST(Distribute, ThePlanAddsUpAndUpdatesBesideTheBackwardPass) {
  const Plan plan =
      plan_of(distributed(trace().graph, 2, {.first_bytes = 1, .bytes = 32 * 32 * 4}));
  int last_compute = 0;
  for (int s = 0; s < static_cast<int>(plan.instructions.size()); ++s) {
    const Op op = plan.graph.node(plan.instructions[static_cast<std::size_t>(s)].node).op;
    if (op == Op::MatMul) last_compute = s;
  }
  int sums_before = 0;
  int updates_before = 0;
  for (int s = 0; s < static_cast<int>(plan.instructions.size()); ++s) {
    const Instruction& step = plan.instructions[static_cast<std::size_t>(s)];
    const Node& node = plan.graph.node(step.node);
    if (is_bucket(node) || node.op == Op::Update) {
      EXPECT_EQ(step.stream, kCommunicationStream);
      if (s < last_compute) ++(node.op == Op::Update ? updates_before : sums_before);
    }
    if (node.op == Op::Assign) {
      EXPECT_EQ(step.stream, kComputeStream);
      EXPECT_FALSE(step.waits.empty());
    }
    if (node.op == Op::MatMul) {
      EXPECT_EQ(step.stream, kComputeStream);
    }
  }
  EXPECT_GE(sums_before, 3);
  EXPECT_GE(updates_before, 2);
}

void expect_reduced_in_place(const Plan& plan) {
  for (const Instruction& step : plan.instructions) {
    const Node& node = plan.graph.node(step.node);
    if (!is_bucket(node)) continue;
    std::size_t end = plan.values[static_cast<std::size_t>(node.outputs[0])].offset;
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      const Allocation& sum = plan.values[static_cast<std::size_t>(node.outputs[i])];
      const Allocation& gradient = plan.values[static_cast<std::size_t>(node.inputs[i])];
      EXPECT_EQ(sum.offset, end);
      end = sum.offset + sum.bytes;
      if (plan.graph.producer(node.inputs[i]).op == Op::Constant) continue;  // the weight
      EXPECT_EQ(gradient.place, Place::Arena);
      EXPECT_EQ(gradient.offset, sum.offset) << "gradient " << i << " is copied";
    }
  }
}

TEST(Distribute, GradientsLieSideBySideAndAreAddedUpInPlace) {
  expect_reduced_in_place(
      plan_of(distributed(trace().graph, 2, {.first_bytes = 1, .bytes = 1 << 14})));
}

TEST(Distribute, NormsOfGradientsAreTakenBucketByBucketAndAddNoCopyAndNoMemory) {
  const BucketSizes sizes{.first_bytes = 1, .bytes = 1 << 13};
  const Plan plain = plan_of(distributed(trace().graph, 2, sizes));
  const Plan plan = plan_of(distributed(trace(Adam(), Norms::OfGradients).graph, 2, sizes));
  expect_reduced_in_place(plan);
  const int buckets = count(plan.graph, Op::AllReduce);
  EXPECT_GE(buckets, 3);
  EXPECT_EQ(buckets, count(plain.graph, Op::AllReduce));
  EXPECT_EQ(count(plan.graph, Op::Update), count(plain.graph, Op::Update));
  EXPECT_EQ(count(plan.graph, Op::GlobalNorm), 2 * buckets + 2);
  EXPECT_LT(plan.arena_bytes, plain.arena_bytes + 4096);  // a few scalars
  // Of a rank's own gradients before they are reduced, of the reduced ones after.
  const auto turn_of = [&](ValueId id) {
    for (std::size_t s = 0; s < plan.instructions.size(); ++s) {
      const auto& made = plan.graph.node(plan.instructions[s].node).outputs;
      if (std::ranges::count(made, id) > 0) return static_cast<int>(s);
    }
    return -1;
  };
  int before = 0, after = 0;
  for (const Instruction& instruction : plan.instructions) {
    const Node& norm = plan.graph.node(instruction.node);
    if (norm.op != Op::GlobalNorm || !norm.attrs.has(kByBucket)) continue;
    const bool reduced = is_bucket(plan.graph.producer(norm.inputs[0]));
    ++(reduced ? after : before);
    if (reduced) continue;
    for (const Node& node : plan.graph.nodes()) {
      if (!is_bucket(node) || std::ranges::count(node.inputs, norm.inputs[0]) == 0) continue;
      EXPECT_LT(turn_of(norm.outputs[0]), turn_of(node.outputs[0]));
    }
  }
  EXPECT_EQ(before, buckets);
  EXPECT_EQ(after, buckets);
}

// What the communication stream touches may be in use until the end of the step.
TEST(Distribute, NothingIsPlacedOverWhatIsInFlight) {
  const Plan plan = plan_of(distributed(trace().graph, 3, {.first_bytes = 1, .bytes = 4096}));
  const auto overlaps = [](const Allocation& a, const Allocation& b) {
    return a.bytes > 0 && b.bytes > 0 && a.offset < b.offset + b.bytes &&
           b.offset < a.offset + a.bytes;
  };
  for (std::size_t s = 0; s < plan.instructions.size(); ++s) {
    if (plan.instructions[s].stream != kCommunicationStream) continue;
    const Node& in_flight = plan.graph.node(plan.instructions[s].node);
    for (std::size_t t = s + 1; t < plan.instructions.size(); ++t) {
      if (plan.instructions[t].stream == kCommunicationStream) continue;
      const auto is_over = [&](int awaited) { return awaited >= static_cast<int>(s); };
      if (std::ranges::any_of(plan.instructions[t].waits, is_over)) break;
      for (ValueId written : plan.graph.node(plan.instructions[t].node).outputs) {
        const Allocation& target = plan.values[static_cast<std::size_t>(written)];
        if (target.place != Place::Arena) continue;
        for (const auto* ids : {&in_flight.inputs, &in_flight.outputs}) {
          for (ValueId id : *ids) {
            const Allocation& used = plan.values[static_cast<std::size_t>(id)];
            EXPECT_FALSE(used.place == Place::Arena && overlaps(used, target))
                << "step " << t << " writes over what step " << s << " uses";
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
