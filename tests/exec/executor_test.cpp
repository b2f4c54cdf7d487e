#include "lockstep/exec/executor.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/passes/pipeline.h"
#include "zero_variable.h"

namespace lockstep {
namespace {

TEST(Executor, AVariableKeepsItsValueFromStepToStep) {
  const VariableRef counter = zero_variable("counter", Shape{}, DType::I64);
  Graph graph;
  const Value before = graph.variable(counter);
  assign(counter, before + 1.0);
  graph.output("before", before + 0.0);
  State state(host(), 1);
  Executor executor(make_plan(std::move(graph), cpu_kernels()), cpu_kernels(), state);
  for (int step = 0; step < 5; ++step) {
    executor.run();
    EXPECT_EQ(executor.output("before").item(), step);
  }
  EXPECT_EQ(state.get(*counter).item(), 5.0);
}

TEST(Executor, TwoPlansShareOneState) {
  const VariableRef weight = zero_variable("weight", Shape{2});
  State state(host(), 1);
  Graph writer;
  assign(weight, writer.input("x", {DType::F32, Shape{2}}));
  Executor write(make_plan(std::move(writer), cpu_kernels()), cpu_kernels(), state);
  Graph reader;
  reader.output("y", neg(reader.variable(weight)));
  Executor read(make_plan(std::move(reader), cpu_kernels()), cpu_kernels(), state);
  write.input("x").copy_from(Tensor::of(std::vector<float>{3.0f, 4.0f}, Shape{2}));
  write.run();
  read.run();
  EXPECT_EQ(read.output("y").values<float>()[0], -3.0f);
  EXPECT_EQ(read.output("y").values<float>()[1], -4.0f);
}

TEST(Executor, ALabelOutOfRangeIsADataErrorThatNamesTheNode) {
  Graph graph;
  const Value logits = graph.input("logits", {DType::F32, Shape{2, 3}});
  const Value labels = graph.input("labels", {DType::I32, Shape{2}});
  {
    Graph::NameScope scope(graph, "head");
    graph.output("loss", sparse_cross_entropy(logits, labels));
  }
  State state(host(), 1);
  Executor executor(make_plan(std::move(graph), cpu_kernels()), cpu_kernels(), state);
  executor.input("labels").copy_from(Tensor::of(std::vector<std::int32_t>{1, 3}, Shape{2}));
  try {
    executor.run();
    FAIL() << "label 3 of 3 classes was taken";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("head"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("3"), std::string::npos) << error.what();
  }
  // The executor still works with good data.
  executor.input("labels").copy_from(Tensor::of(std::vector<std::int32_t>{1, 2}, Shape{2}));
  EXPECT_NO_THROW(executor.run());
}

TEST(Executor, EveryNodeLeavesASpan) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, Shape{8}});
  graph.output("y", reduce_sum(exp(x)));
  State state(host(), 1);
  Recorder recorder;
  Executor executor(make_plan(std::move(graph), cpu_kernels()), cpu_kernels(), state,
                    {.recorder = &recorder});
  executor.run();
  executor.run();
  EXPECT_EQ(recorder.track("replica 0").spans().size(), 4u);
}

TEST(Executor, AnUnknownInputIsRefusedWithTheNamesThereAre) {
  Graph graph;
  graph.output("y", neg(graph.input("images", {DType::F32, Shape{8}})));
  State state(host(), 1);
  Executor executor(make_plan(std::move(graph), cpu_kernels()), cpu_kernels(), state);
  try {
    executor.input("image");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("images"), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep
