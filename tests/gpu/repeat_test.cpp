// A step gives the same gradients, bit for bit, every time, whatever else the GPU does. The test is
// strongest if several processes run it at once.
#include "gpu/gpu.h"
#include "train/golden.h"

namespace lockstep::golden {
namespace {

constexpr int kBatches = 4;

// With a tiny momentum, an optimizer's slots are the gradients of the last step; with a tiny
// learning rate, the parameters do not change.
TEST(GpuRepeat, EveryStepComputesTheSameGradients) {
  LOCKSTEP_NEEDS_GPU();
  const std::shared_ptr<Network> network = kModels[0].make();
  const Optimizer optimizer = SGD({.learning_rate = 1e-30, .momentum = 1e-30});
  Graph graph = trace(*network, optimizer, {DType::F32, {8, 20}}, {DType::I32, {8}});
  optimize(graph, gpu_kernels());
  State state(gpu(), 0);
  Executor executor(make_plan(std::move(graph), gpu_kernels()), gpu_kernels(), state);

  const auto fill = [&](int batch) {
    int i = batch * 1000;
    executor.await_inputs();
    for (float& x : executor.input("x").values<float>()) x = std::sin(static_cast<float>(++i));
    for (std::int32_t& y : executor.input("y").values<std::int32_t>()) y = ++i % kClasses;
  };
  std::map<std::string, std::vector<float>> first[kBatches];
  for (int run = 0; run < 500; ++run) {
    fill(run % kBatches);
    executor.run();
    executor.wait();
    for (const VariableRef& variable : optimizer.variables()) {
      if (!variable->name.starts_with("sgd/v/")) continue;
      const Tensor slot = state.get(*variable);
      const auto values = slot.values<float>();
      auto& expected = first[run % kBatches][variable->name];
      if (run < kBatches) expected.assign(values.begin(), values.end());
      ASSERT_TRUE(std::ranges::equal(values, expected)) << variable->name << " in run " << run;
    }
  }
  EXPECT_EQ(first[0].size(), 4U);
}

}  // namespace
}  // namespace lockstep::golden
