// Plans on the GPU: the first run issues kernels, later ones launch the recording; the host may run
// ahead; errors in the data are found.
#include "lockstep/exec/executor.h"
#include "gpu/gpu.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/passes/pipeline.h"

namespace lockstep {
namespace {

Plan planned(Graph graph) {
  optimize(graph, gpu_kernels());
  return make_plan(std::move(graph), gpu_kernels());
}

TEST(GpuExecutor, EveryRunSeesItsOwnInputs) {
  LOCKSTEP_NEEDS_GPU();
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {1000, 33}});
  graph.output("y", exp(x) + 1.0);
  State state(gpu(), 0);
  Executor executor(planned(std::move(graph)), gpu_kernels(), state);
  for (int run = 0; run < 6; ++run) {
    executor.await_inputs();
    for (float& value : executor.input("x").values<float>())
      value = static_cast<float>(run) * 0.25f;
    executor.run();
    executor.wait();
    const Tensor y = executor.output("y");
    for (const float value : y.values<float>()) {
      ASSERT_NEAR(value, std::exp(static_cast<float>(run) * 0.25f) + 1.0f, 1e-5f) << "run " << run;
    }
  }
}

TEST(GpuExecutor, VariablesKeepTheirValuesWhileTheHostRunsAhead) {
  LOCKSTEP_NEEDS_GPU();
  const auto counter = std::make_shared<Variable>();
  counter->name = "counter";
  counter->dtype = DType::F32;
  counter->shape = Shape{257};
  Graph graph;
  assign(counter, graph.variable(counter) + 1.0);
  State state(gpu(), 0);
  Executor executor(planned(std::move(graph)), gpu_kernels(), state);
  for (int run = 0; run < 50; ++run) executor.run();
  executor.wait();
  const Tensor value = state.get(*counter);
  for (const float each : value.values<float>()) ASSERT_EQ(each, 50.0f);
}

TEST(GpuExecutor, ResultsAreReadWhileTheNextRunIsInFlight) {
  LOCKSTEP_NEEDS_GPU();
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {257}});
  graph.output("y", reduce_sum(x));
  State state(gpu(), 0);
  Executor executor(planned(std::move(graph)), gpu_kernels(), state);
  const Tensor y = executor.output("y");
  for (int run = 1; run <= 50; ++run) {
    // Alternates between the executor's memory and a bound buffer that is then overwritten.
    const std::shared_ptr<Buffer> bound = gpu().allocate_host(257 * sizeof(float));
    executor.await_inputs();
    Tensor values = run % 2 == 0 ? executor.input("x") : Tensor(DType::F32, {257}, bound, 0);
    for (float& value : values.values<float>()) value = static_cast<float>(run);
    if (run % 2 != 0) {
      EXPECT_TRUE(executor.bind_input("x", bound, 0));
    }
    executor.run();
    EXPECT_EQ(executor.runs(), static_cast<std::uint64_t>(run));
    if (run == 1) continue;
    executor.wait(static_cast<std::uint64_t>(run) - 1);
    ASSERT_EQ(y.item(), 257.0 * (run - 1)) << "run " << run;
  }
  executor.wait();
  EXPECT_EQ(y.item(), 257.0 * 50);
  const Tensor pageable(DType::F32, {257});
  EXPECT_FALSE(executor.bind_input("x", pageable.buffer(), 0));
}

// The losses of four samples with three classes.
Graph labelled() {
  Graph graph;
  const Value logits = graph.input("logits", {DType::F32, {4, 3}});
  const Value labels = graph.input("labels", {DType::I32, {4}});
  graph.output("loss", sparse_cross_entropy(logits, labels));
  return graph;
}

TEST(GpuExecutor, ABadLabelIsReportedForItsOwnRun) {
  LOCKSTEP_NEEDS_GPU();
  State state(gpu(), 0);
  Executor executor(planned(labelled()), gpu_kernels(), state);
  const auto run = [&](std::int32_t label) {
    executor.await_inputs();
    executor.input("labels").copy_from(
        Tensor::of(std::vector<std::int32_t>{0, 1, label, 1}, Shape{4}));
    executor.run();
  };
  for (int round = 0; round < 20; ++round) {
    run(2);
    run(7);
    const std::uint64_t last = executor.runs();
    EXPECT_NO_THROW(executor.wait(last - 1)) << "the label of the next run was reported";
    run(2);
    EXPECT_THROW(executor.wait(last), DataError);
    EXPECT_NO_THROW(executor.wait(last + 1)) << "the label of the previous run was reported again";
  }
}

TEST(GpuExecutor, ALabelOutOfRangeIsNamedAndTheNextRunWorks) {
  LOCKSTEP_NEEDS_GPU();
  State state(gpu(), 0);
  Executor executor(planned(labelled()), gpu_kernels(), state);
  for (const bool bad : {false, true, false, true, false}) {
    executor.await_inputs();
    executor.input("labels").copy_from(
        Tensor::of(std::vector<std::int32_t>{0, 1, bad ? 7 : 2, 1}, Shape{4}));
    executor.run();
    if (!bad) {
      EXPECT_NO_THROW(executor.wait());
      continue;
    }
    try {
      executor.wait();
      ADD_FAILURE() << "label 7 of 3 classes went unnoticed";
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find("7"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("3"), std::string::npos) << error.what();
    }
  }
}

TEST(GpuExecutor, TooLittleMemoryIsReportedInAdvance) {
  LOCKSTEP_NEEDS_GPU();
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {1}});
  const Value big = broadcast_to(x, Shape{1 << 20, 1 << 20});  // 4 TiB
  graph.output("y", reduce_sum(big * big));
  State state(gpu(), 0);
  try {
    Executor executor(make_plan(std::move(graph), gpu_kernels()), gpu_kernels(), state);
    ADD_FAILURE() << "4 TiB were allocated";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("are free"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("smaller batch"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace lockstep
