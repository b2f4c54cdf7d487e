// Updates whose slots are kept in host memory: how they are divided, planned and run.
#include "lockstep/passes/offload.h"

#include <gtest/gtest.h>

#include <cmath>

#include "late_device.h"
#include "lockstep/exec/executor.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/passes/pipeline.h"

namespace lockstep {
namespace {

const Shape kOffloadShapes[] = {{64, 32}, {32}, {300, 7}, {5}, {16, 16}};

// Adam on parameters whose gradients are computed from an input one after another.
struct OffloadNet {
  std::vector<VariableRef> parameters;
  std::vector<VariableRef> slots[2];

  OffloadNet() {
    const auto variable = [](std::string name, const Shape& shape, double start) {
      return std::make_shared<const Variable>(
          Variable{.name = std::move(name),
                   .shape = shape,
                   .initializer = [start](Tensor& target, std::uint64_t) {
                     double next = start;
                     for (float& x : target.values<float>()) {
                       x = static_cast<float>(std::abs(std::sin(next += 1.0)));
                     }
                   }});
    };
    for (std::size_t i = 0; i < std::size(kOffloadShapes); ++i) {
      parameters.push_back(variable(fmt::format("p{}", i), kOffloadShapes[i], 1.0));
      slots[0].push_back(variable(fmt::format("m{}", i), kOffloadShapes[i], 2.0));
      slots[1].push_back(variable(fmt::format("v{}", i), kOffloadShapes[i], 3.0));
    }
  }

  Graph trace() const {
    Graph graph;
    const Value x = graph.input("x", {DType::F32, {}});
    UpdateInputs inputs{.rate = graph.scalar(0.01),
                        .scale = graph.scalar(1.0),
                        .step = graph.scalar(3, DType::I64),
                        .parameters = {},
                        .gradients = {},
                        .slots = {{}, {}}};
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      inputs.parameters.push_back(graph.variable(parameters[i]));
      inputs.gradients.push_back(inputs.parameters.back() * x);
      for (int s : {0, 1})
        inputs.slots[static_cast<std::size_t>(s)].push_back(graph.variable(slots[s][i]));
    }
    update(inputs, "adam", {{"beta_1", 0.9}, {"beta_2", 0.999}, {"epsilon", 1e-7}});
    return graph;
  }

  std::size_t slot_bytes() const {
    std::size_t bytes = 0;
    for (const VariableRef& p : parameters) {
      bytes += 2 * sizeof(float) * static_cast<std::size_t>(p->shape.elements());
    }
    return bytes;
  }
};

Plan planned(const OffloadNet& net, std::optional<std::size_t> staging_bytes) {
  Graph graph = net.trace();
  if (staging_bytes) OffloadPass({.staging_bytes = *staging_bytes}).run(graph);
  optimize(graph, cpu_kernels());
  return make_plan(std::move(graph), cpu_kernels());
}

TEST(Offload, UpdatesAreDividedByTheirSlots) {
  const OffloadNet net;
  Graph graph = net.trace();
  // 16384, 256, 16800, 40 and 2048 bytes of slots.
  OffloadPass({.staging_bytes = 16700}).run(graph);
  std::vector<std::size_t> bytes;
  std::size_t parameters = 0;
  for (const Node& node : graph.nodes()) {
    if (node.op != Op::Update) continue;
    parameters += static_cast<std::size_t>(node.attrs.integer("count"));
    bytes.push_back(0);
    for (ValueId id : staged_slots(node)) bytes.back() += graph.bytes(id);
  }
  EXPECT_EQ(parameters, 5U);
  EXPECT_EQ(bytes, (std::vector<std::size_t>{16640, 16800, 2088}));
}

TEST(Offload, SlotsCountAsHostMemoryAndTwoBuffersAsTheDevices) {
  const OffloadNet net;
  const Plan whole = planned(net, {});
  const Plan staged = planned(net, 16700);
  EXPECT_EQ(whole.host_bytes, 0U);
  EXPECT_EQ(staged.host_bytes, net.slot_bytes());
  EXPECT_EQ(staged.variable_bytes, whole.variable_bytes - net.slot_bytes());
  std::vector<const Instruction*> updates;
  for (const Instruction& instruction : staged.instructions) {
    if (instruction.staging_bytes == 0) continue;
    updates.push_back(&instruction);
    EXPECT_EQ(instruction.stream, kCommunicationStream);
    EXPECT_LE(instruction.staging_offset + instruction.staging_bytes, staged.arena_bytes);
  }
  ASSERT_EQ(updates.size(), 3U);
  EXPECT_EQ(updates[0]->staging_offset, updates[2]->staging_offset);
  const auto [low, high] = std::minmax(updates[0]->staging_offset, updates[1]->staging_offset);
  EXPECT_GE(high - low, 16640U);
}

// On a device of its own memory slots are copied, and no copy spans two blocks of the host's.
TEST(Offload, GivesTheBitsOfSlotsOnTheDevice) {
  const OffloadNet net;
  testing::LateDevice late;
  std::vector<std::vector<Tensor>> results;
  for (const auto& [device, staging] :
       std::initializer_list<std::pair<Device*, std::optional<std::size_t>>>{{&host(), {}},
                                                                             {&host(), 16700},
                                                                             {&host(), 1},
                                                                             {&late, {}},
                                                                             {&late, 16700},
                                                                             {&late, 1}}) {
    State state(*device, 1);
    Executor executor(planned(net, staging), cpu_kernels(), state);
    for (int step = 0; step < 4; ++step) {
      executor.await_inputs();
      executor.input("x").values<float>()[0] = 0.5F + static_cast<float>(step);
      executor.run();
    }
    executor.wait();
    std::vector<Tensor>& values = results.emplace_back();
    for (std::size_t i = 0; i < net.parameters.size(); ++i) {
      values.push_back(state.get(*net.parameters[i]));
      for (const auto& slots : net.slots) values.push_back(state.get(*slots[i]));
    }
  }
  for (std::size_t way = 1; way < results.size(); ++way) {
    for (std::size_t i = 0; i < results[0].size(); ++i) {
      EXPECT_TRUE(results[way][i].same_bits(results[0][i])) << way << " " << i;
    }
  }
}

}  // namespace
}  // namespace lockstep
