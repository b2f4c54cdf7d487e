// Plans that release the memory of buckets during the step, run by replicas that are threads: the
// results equal those of a plan that keeps it all until the end.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "lockstep/comm/local/local_group.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/exec/executor.h"
#include "lockstep/graph/ops/ops.h"

namespace lockstep {
namespace {

constexpr std::size_t kLayers = 16;
constexpr std::int64_t kWidth = 24;

std::vector<VariableRef> make_parameters() {
  std::vector<VariableRef> parameters;
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    const auto parameter = std::make_shared<Variable>();
    parameter->name = fmt::format("w{}", layer);
    parameter->shape = {kWidth, kWidth};
    parameter->initializer = [layer](Tensor& start, std::uint64_t) {
      const auto values = start.values<float>();
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = 0.01f * static_cast<float>((i * 7 + layer) % 13) - 0.05f;
      }
    };
    parameters.push_back(parameter);
  }
  return parameters;
}

// Backwards through layers, a gradient from each; `of` gradients form a bucket.
Graph step(const std::vector<VariableRef>& parameters, std::size_t of) {
  Graph graph;
  Value dy = exp(graph.input("dy", {DType::F32, Shape{4, kWidth}}));
  std::vector<Value> sums;
  UpdateInputs inputs;
  inputs.rate = graph.scalar(0.01);
  inputs.scale = graph.scalar(0.5);
  inputs.step = graph.scalar(1, DType::I64);
  for (const VariableRef& parameter : parameters) {
    inputs.parameters.push_back(graph.variable(parameter));
    sums.push_back(matmul(dy, dy, {.transpose_a = true}));
    dy = tanh(matmul(dy, inputs.parameters.back(), {.transpose_b = true}));
    if (sums.size() < of) continue;
    inputs.gradients = all_reduce_gradients(sums);
    update(inputs, "sgd", {{"momentum", 0.0}, {"nesterov", false}});
    sums.clear();
    inputs.parameters.clear();
  }
  graph.output("dx", reduce_sum(dy));
  return graph;
}

struct Result {
  std::vector<Tensor> weights;  // of the first replica
  std::size_t arena_bytes = 0;
};

Result train(std::size_t of) {
  constexpr int kReplicas = 2;
  const std::vector<VariableRef> parameters = make_parameters();
  LocalGroup group({.names = {"cpu:0", "cpu:1"}, .timeout = std::chrono::seconds(60)});
  Result result;
  const auto run = [&](int replica) {
    CpuDevice device(replica, {available_cores().front()});
    State state(device, 1);
    Executor executor(make_plan(step(parameters, of), cpu_kernels()), cpu_kernels(), state,
                      {.gradient_comm = &group.rank(replica)});
    for (int round = 0; round < 5; ++round) {
      const auto values = executor.input("dy").values<float>();
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = 0.1f * static_cast<float>((i + static_cast<std::size_t>(round + replica)) % 5);
      }
      executor.run();
    }
    if (replica > 0) return;
    for (const VariableRef& parameter : parameters) result.weights.push_back(state.get(*parameter));
    result.arena_bytes = executor.plan().arena_bytes;
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < kReplicas; ++r) threads.emplace_back(run, r);
  for (std::thread& thread : threads) thread.join();
  return result;
}

TEST(ReleaseRun, GivesTheBitsOfAPlanThatKeepsAllToTheEnd) {
  const Result whole = train(kLayers);
  const Result pieces = train(1);
  EXPECT_LT(pieces.arena_bytes, whole.arena_bytes / 2);
  ASSERT_EQ(whole.weights.size(), pieces.weights.size());
  for (std::size_t i = 0; i < whole.weights.size(); ++i) {
    EXPECT_TRUE(whole.weights[i].same_bits(pieces.weights[i])) << i;
  }
}

}  // namespace
}  // namespace lockstep
