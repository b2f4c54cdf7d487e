// Memory of the communication stream: released where the compute stream waits for it, and never
// touched by two instructions that may run at the same time.
#include "lockstep/plan/release.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "lockstep/base/random.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/ops/state.h"
#include "lockstep/kernels/kernel.h"
#include "zero_variable.h"

namespace lockstep {
namespace {

struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool written = false;

  bool conflicts(const Range& other) const {
    return (written || other.written) && begin < other.end && other.begin < end;
  }
};

// What an instruction touches in the arena.
std::vector<Range> touched(const Plan& plan, const Instruction& instruction) {
  std::vector<Range> ranges;
  const auto add = [&](ValueId id, bool written) {
    const Allocation& allocation = plan.values[static_cast<std::size_t>(id)];
    if (allocation.place != Place::Arena || allocation.bytes == 0) return;
    ranges.push_back({allocation.offset, allocation.offset + allocation.bytes, written});
  };
  const Node& node = plan.graph.node(instruction.node);
  for (ValueId id : node.inputs) add(id, false);
  for (ValueId id : node.outputs) add(id, true);
  if (instruction.workspace_bytes > 0) {
    ranges.push_back({instruction.workspace_offset,
                      instruction.workspace_offset + instruction.workspace_bytes, true});
  }
  return ranges;
}

// An instruction of the communication stream may run at any time from its position until the first
// one of the compute stream that waits for it, or for a later one. Within that time nothing else
// may touch what it writes, or write what it reads; the communication stream itself runs in order.
void expect_no_overlap(const Plan& plan) {
  const int count = static_cast<int>(plan.instructions.size());
  std::vector<std::vector<Range>> ranges;
  for (const Instruction& instruction : plan.instructions) {
    ranges.push_back(touched(plan, instruction));
  }
  for (int c = 0; c < count; ++c) {
    if (plan.instructions[static_cast<std::size_t>(c)].stream != kCommunicationStream) continue;
    for (int t = c + 1; t < count; ++t) {
      const Instruction& other = plan.instructions[static_cast<std::size_t>(t)];
      if (other.stream == kCommunicationStream) continue;
      if (std::ranges::any_of(other.waits, [&](int awaited) { return awaited >= c; })) break;
      for (const Range& mine : ranges[static_cast<std::size_t>(c)]) {
        for (const Range& theirs : ranges[static_cast<std::size_t>(t)]) {
          ASSERT_FALSE(mine.conflicts(theirs))
              << "instruction " << t << " touches what " << c << " uses\n"
              << print(plan);
        }
      }
    }
  }
}

// Every value that is read was written last by the right node, both if every instruction runs at
// its position and if those of the communication stream run as late as they may.
void expect_right_values(const Plan& plan, bool late) {
  std::vector<ValueId> owner;  // per 4 bytes of the arena
  owner.assign(plan.arena_bytes / 4 + 1, -1);
  const auto root = [&](ValueId id) {
    while (op_def(plan.graph.producer(id).op).view) id = plan.graph.producer(id).inputs[0];
    return id;
  };
  const auto run = [&](const Instruction& instruction) {
    const Node& node = plan.graph.node(instruction.node);
    const auto place = [&](ValueId id) { return plan.values[static_cast<std::size_t>(id)]; };
    for (ValueId id : node.inputs) {
      const Allocation at = place(id);
      if (at.place != Place::Arena) continue;
      for (std::size_t b = at.offset / 4; b < (at.offset + at.bytes) / 4; ++b) {
        ASSERT_EQ(owner[b], root(id)) << op_def(node.op).name << " " << node.name;
      }
    }
    if (instruction.workspace_bytes > 0) {
      const std::size_t begin = instruction.workspace_offset / 4;
      for (std::size_t b = begin; b < begin + instruction.workspace_bytes / 4; ++b) owner[b] = -2;
    }
    for (ValueId id : node.outputs) {
      const Allocation at = place(id);
      if (at.place != Place::Arena) continue;
      for (std::size_t b = at.offset / 4; b < (at.offset + at.bytes) / 4; ++b) owner[b] = id;
    }
  };
  std::vector<int> waiting;  // of the communication stream
  const auto run_up_to = [&](int last) {
    while (!waiting.empty() && waiting.front() <= last) {
      run(plan.instructions[static_cast<std::size_t>(waiting.front())]);
      waiting.erase(waiting.begin());
    }
  };
  for (int s = 0; s < static_cast<int>(plan.instructions.size()); ++s) {
    const Instruction& instruction = plan.instructions[static_cast<std::size_t>(s)];
    if (late && instruction.stream == kCommunicationStream) {
      waiting.push_back(s);
      continue;
    }
    for (int awaited : instruction.waits) run_up_to(awaited);
    run(instruction);
  }
  run_up_to(static_cast<int>(plan.instructions.size()));
}

int release_count(const Plan& plan) {
  int count = 0;
  for (const Instruction& instruction : plan.instructions) {
    count += !instruction.waits.empty() && !is_assignment(plan.graph.node(instruction.node));
  }
  return count;
}

UpdateInputs update_inputs(Graph& graph) {
  UpdateInputs inputs;
  inputs.rate = graph.scalar(0.1);
  inputs.scale = graph.scalar(1.0);
  inputs.step = graph.scalar(1, DType::I64);
  return inputs;
}

// A chain of `layers` products backwards: each gives a gradient of width × width, and every `of`
// gradients form a bucket with its own update.
Graph backward_chain(int layers, std::int64_t width, int of) {
  Graph graph;
  Value dy = exp(graph.input("dy", {DType::F32, Shape{4, width}}));
  std::vector<Value> sums;
  std::vector<Value> parameters;
  for (int layer = 0; layer < layers; ++layer) {
    const Value w = graph.variable(zero_variable(fmt::format("w{}", layer), {width, width}));
    sums.push_back(matmul(dy, dy, {.transpose_a = true}));
    parameters.push_back(w);
    dy = tanh(matmul(dy, w, {.transpose_b = true}));
    if (static_cast<int>(sums.size()) < of && layer + 1 < layers) continue;
    UpdateInputs inputs = update_inputs(graph);
    inputs.parameters = std::move(parameters);
    inputs.gradients = all_reduce_gradients(sums);
    update(inputs, "sgd", {{"momentum", 0.0}, {"nesterov", false}});
    sums.clear();
    parameters.clear();
  }
  graph.output("dx", reduce_sum(dy));
  return graph;
}

TEST(Release, ManyBucketsOfAStepTakeTheMemoryOfAFew) {
  const std::int64_t width = 64;
  const std::size_t gradient = static_cast<std::size_t>(width * width) * 4;
  const Plan many = make_plan(backward_chain(24, width, 1), reference_kernels());
  // Two in flight, the one being computed, and the one before them; without releases it was all 24.
  EXPECT_LT(many.arena_bytes, 5 * gradient);
  EXPECT_GT(release_count(many), 10);
  expect_no_overlap(many);
  expect_right_values(many, false);
  expect_right_values(many, true);
}

TEST(Release, AStepOfOneOrTwoBucketsDoesNotWait) {
  for (const int of : {24, 12}) {
    const Plan plan = make_plan(backward_chain(24, 64, of), reference_kernels());
    EXPECT_EQ(release_count(plan), 0);
    expect_no_overlap(plan);
  }
}

TEST(Release, WhereActivationsArePeakMemoryNobodyWaits) {
  // The activations of a forward pass are far larger than the gradients, and die while those are
  // computed.
  Graph graph;
  Value x = graph.input("x", {DType::F32, Shape{512, 16}});
  std::vector<Value> kept;
  for (int layer = 0; layer < 12; ++layer) kept.push_back(x = exp(x));
  Value dy = x;
  for (int layer = 11; layer >= 0; --layer) {
    const Value w = graph.variable(zero_variable(fmt::format("w{}", layer), {16, 16}));
    dy = dy * kept[static_cast<std::size_t>(layer)];
    UpdateInputs inputs = update_inputs(graph);
    inputs.parameters = {w};
    inputs.gradients = all_reduce_gradients(
        std::vector{matmul(dy, kept[static_cast<std::size_t>(layer)], {.transpose_a = true})});
    update(inputs, "sgd", {{"momentum", 0.0}, {"nesterov", false}});
  }
  const Plan plan = make_plan(std::move(graph), reference_kernels());
  EXPECT_EQ(release_count(plan), 0);
  expect_no_overlap(plan);
}

TEST(Release, OnlyWaitsThatMemoryNeedsAreMade) {
  const Plan plan = make_plan(backward_chain(24, 64, 1), reference_kernels());
  for (std::size_t s = 0; s < plan.instructions.size(); ++s) {
    if (plan.instructions[s].waits.empty() ||
        is_assignment(plan.graph.node(plan.instructions[s].node))) {
      continue;
    }
    // Without this wait, something between it and the next is touched too early.
    bool needed = false;
    for (std::size_t c = 0; c < s; ++c) {
      if (plan.instructions[c].stream != kCommunicationStream) continue;
      for (std::size_t t = s; t < plan.instructions.size(); ++t) {
        if (plan.instructions[t].stream == kCommunicationStream) continue;
        if (t > s && !plan.instructions[t].waits.empty()) break;
        for (const Range& mine : touched(plan, plan.instructions[c])) {
          for (const Range& theirs : touched(plan, plan.instructions[t])) {
            needed = needed || mine.conflicts(theirs);
          }
        }
      }
    }
    EXPECT_TRUE(needed) << s;
  }
}

// A random step: values of several sizes, used near and far, some of them gradients that are
// reduced in buckets; some buckets are followed by updates, some by other nodes of the stream.
Graph drawn(RandomSequence& random) {
  Graph graph;
  std::vector<Value> values;
  const auto size = [&] { return static_cast<std::int64_t>(64 * (1 + random.below(8))); };
  const auto any = [&] { return values[random.below(values.size())]; };
  for (int i = 0; i < 3; ++i) {
    values.push_back(graph.input(fmt::format("x{}", i), {DType::F32, Shape{size()}}));
  }
  const auto buckets = static_cast<int>(random.below(9));
  int made = 0;
  for (int i = 0; i < 20 + 8 * buckets; ++i) {
    const Value value = random.below(3) == 0 ? any() : values.back();
    switch (random.below(6)) {
      case 0:
        values.push_back(exp(value));
        break;
      case 1:
        values.push_back(value + neg(value));
        break;
      case 2:
        values.push_back(reshape(tanh(value), Ints{1, value.shape().elements()}));
        values.back() = reshape(values.back(), Ints{value.shape().elements()});
        break;
      case 3:  // of twice the size
        if (value.shape().elements() > 2048) break;
        values.push_back(reshape(matmul(reshape(value, Ints{value.shape().elements(), 1}),
                                        graph.constant(Tensor(DType::F32, {1, 2}))),
                                 Ints{2 * value.shape().elements()}));
        break;
      default:
        values.push_back(neg(value));
        break;
    }
    if (made >= buckets || random.below(5) != 0) continue;
    std::vector<Value> gradients;
    std::vector<Value> parameters;
    for (std::uint64_t g = 0; g <= random.below(3); ++g) {
      gradients.push_back(exp(values[values.size() - 1 - random.below(3)]));
      parameters.push_back(
          graph.variable(zero_variable(fmt::format("p{}_{}", made, g), gradients.back().shape())));
    }
    const std::vector<Value> sums = all_reduce_gradients(gradients);
    ++made;
    if (random.below(4) == 0) {
      assign(parameters[0].graph().variables().back(), sums.back() * 2.0);
      continue;
    }
    UpdateInputs inputs = update_inputs(graph);
    inputs.parameters = parameters;
    inputs.gradients = sums;
    if (random.below(3) == 0) inputs.gradients[0] = tanh(inputs.gradients[0]);
    update(inputs, "sgd", {{"momentum", 0.0}, {"nesterov", false}});
  }
  graph.output("y", reduce_sum(values.back()));
  graph.output("any", any() + 1.0);
  return graph;
}

// The reference, with a workspace for each op.
struct Backed final : Backend {
  NodeLayouts layouts(const Graph& graph, const Node& node) const override {
    return reference_kernels().layouts(graph, node);
  }
  bool fuses_activation(const Graph&, const Node&, std::string_view) const override {
    return false;
  }
  std::size_t workspace_bytes(const Graph&, const Node& node) const override {
    return static_cast<std::size_t>(node.inputs.size()) * 512;
  }
};

TEST(Release, NoTwoValuesOverlapInRandomStepsWhateverTheInterleaving) {
  RandomSequence random(7, 3);
  int with_releases = 0;
  for (int round = 0; round < 300; ++round) {
    const Plan plan = make_plan(drawn(random), Backed());
    with_releases += release_count(plan) > 0;
    ASSERT_NO_FATAL_FAILURE(expect_no_overlap(plan)) << round;
    ASSERT_NO_FATAL_FAILURE(expect_right_values(plan, false)) << round;
    ASSERT_NO_FATAL_FAILURE(expect_right_values(plan, true)) << round;
  }
  EXPECT_GT(with_releases, 30);
}

}  // namespace
}  // namespace lockstep
