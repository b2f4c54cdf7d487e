// Instructions on the side stream: which ones go there, and that no two that touch the same memory
// are left without an order.
#include "lockstep/exec/side_streams.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/autodiff/gradients.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/kernels/kernel.h"
#include "lockstep/passes/pipeline.h"

namespace lockstep {
namespace {

VariableRef variable(std::string name, Shape shape) {
  auto made = std::make_shared<Variable>();
  made->name = std::move(name);
  made->shape = std::move(shape);
  return made;
}

// A training step of dense layers, all of one width.
Graph training_step(int layers, std::int64_t batch, std::int64_t width) {
  Graph graph;
  Value x = graph.input("x", {DType::F32, Shape{batch, width}});
  const Value labels = graph.input("y", {DType::I32, Shape{batch}});
  std::vector<Value> parameters;
  for (int i = 0; i < layers; ++i) {
    const Value w = graph.variable(variable(fmt::format("w{}", i), {width, width}));
    const Value b = graph.variable(variable(fmt::format("b{}", i), {width}));
    parameters.insert(parameters.end(), {w, b});
    x = matmul(x, w, b, {.activation = i + 1 < layers ? "relu" : ""});
  }
  const Value loss = reduce_sum(sparse_cross_entropy(x, labels));
  graph.output("loss", loss);
  UpdateInputs inputs;
  inputs.rate = graph.scalar(0.1);
  inputs.scale = graph.scalar(1.0);
  inputs.step = graph.scalar(1, DType::I64);
  inputs.parameters = parameters;
  inputs.gradients = gradients(loss, parameters);
  update(inputs, "sgd", {{"momentum", 0.0}, {"nesterov", false}});
  return graph;
}

struct Divided {
  explicit Divided(Graph graph) : state(host(), 1) {
    optimize(graph, cpu_kernels());
    plan = make_plan(std::move(graph), cpu_kernels());
    state.add(plan.graph);
    memory.emplace(plan, state);
    steps = find_side_streams(plan, *memory);
  }

  Plan plan;
  State state;
  std::optional<PlanMemory> memory;
  SideStreams steps;
};

// By instruction: up to which instruction of the other stream its own has waited when it starts.
std::vector<int> waited_for(const SideStreams& steps) {
  const int count = static_cast<int>(steps.beside.size());
  std::vector<int> waited(steps.beside.size(), -1);
  int by_first = -1;
  int by_second = -1;
  for (int s = 0; s < count; ++s) {
    const auto i = static_cast<std::size_t>(s);
    if (steps.joins[i]) by_first = s - 1;
    waited[i] = steps.beside[i] ? by_second : by_first;
    if (steps.forks[i]) by_second = s;
  }
  return waited;
}

struct Touched {
  const std::byte* begin;
  const std::byte* end;
  bool written;
};

std::vector<Touched> touched_by(const Divided& d, std::size_t s) {
  const Instruction& step = d.plan.instructions[s];
  const Node& node = d.plan.graph.node(step.node);
  std::vector<Touched> list;
  const std::vector<ValueId> changed = changed_variables(node);
  for (ValueId id : node.inputs) {
    const std::byte* at = d.memory->address(id);
    const bool written = std::ranges::count(changed, id) > 0;
    list.push_back({at, at + d.plan.graph.bytes(id), written});
  }
  for (ValueId id : node.outputs) {
    const std::byte* at = d.memory->address(id);
    list.push_back({at, at + d.plan.graph.bytes(id), true});
  }
  const std::byte* at = d.memory->workspace(step);
  if (at != nullptr) list.push_back({at, at + step.workspace_bytes, true});
  return list;
}

void expect_ordered(const Divided& d) {
  const std::vector<int> waited = waited_for(d.steps);
  for (std::size_t later = 0; later < d.plan.instructions.size(); ++later) {
    for (std::size_t earlier = 0; earlier < later; ++earlier) {
      if (d.steps.beside[later] == d.steps.beside[earlier]) continue;
      if (static_cast<int>(earlier) <= waited[later]) continue;
      for (const Touched& a : touched_by(d, earlier)) {
        for (const Touched& b : touched_by(d, later)) {
          const bool overlap = a.begin < b.end && b.begin < a.end;
          EXPECT_FALSE(overlap && (a.written || b.written))
              << "steps " << earlier << " and " << later << "\n"
              << print(d.plan);
        }
      }
    }
  }
}

TEST(SideStreams, GradientsOfWeightsRunBesideTheBackwardPass) {
  const Divided d(training_step(3, 32, 64));
  ASSERT_TRUE(d.steps.any);
  EXPECT_GE(std::ranges::count(d.steps.beside, true), 3) << print(d.plan);
}

TEST(SideStreams, WhatTouchesTheSameMemoryHasAnOrder) {
  for (const int layers : {1, 2, 3, 5, 9}) {
    for (const std::int64_t batch : {8, 32, 100}) {
      for (const std::int64_t width : {10, 64, 128}) {
        expect_ordered(Divided(training_step(layers, batch, width)));
      }
    }
  }
}

TEST(SideStreams, TheUpdateWaitsForAll) {
  const Divided d(training_step(3, 32, 64));
  const auto update = std::ranges::find_if(d.plan.instructions, [&](const Instruction& step) {
    return d.plan.graph.node(step.node).op == Op::Update;
  });
  const auto s = static_cast<std::size_t>(update - d.plan.instructions.begin());
  EXPECT_FALSE(d.steps.beside[s]);
  EXPECT_TRUE(d.steps.joins[s]);
}

TEST(SideStreams, LongStepsRunOneByOne) {
  EXPECT_FALSE(Divided(training_step(2, 2048, 1024)).steps.any);
}

}  // namespace
}  // namespace lockstep
