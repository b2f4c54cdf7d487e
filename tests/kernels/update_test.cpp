// The update and the norm of gradients as nodes of a graph: their layouts, padding and checks.
#include "kernels/cases_update.h"
#include "kernels/evaluate.h"
#include "kernels/op_case_check.h"
#include "zero_variable.h"

namespace lockstep {
namespace {

LOCKSTEP_OP_CASES(Update, update_cases());

// q, and e afterwards, of one gradient in bf16, whose numbers near 1 are 2^-7 apart.
struct RoundedOnce {
  float rounded;
  float error;
};
RoundedOnce round_once(float gradient, float error, float unit, float keep,
                       DType dtype = DType::BF16) {
  Graph graph;
  const VariableRef errors = random_variable("error", {1});
  const RoundInputs inputs{.unit = graph.input("unit", {DType::F32, {}}),
                           .keep = graph.input("keep", {DType::F32, {}}),
                           .gradients = {graph.input("gradient", {DType::F32, {1}})},
                           .errors = {graph.variable(errors)}};
  graph.output("rounded", cast(round_gradients(inputs, dtype).front(), DType::F32));
  State state(host(), 1);
  Executor executor(make_plan(std::move(graph), cpu_kernels()), cpu_kernels(), state);
  Tensor start(DType::F32, {1});
  start.values<float>()[0] = error;
  state.set(*errors, start);
  executor.input("unit").values<float>()[0] = unit;
  executor.input("keep").values<float>()[0] = keep;
  executor.input("gradient").values<float>()[0] = gradient;
  executor.run();
  return {executor.output("rounded").values<float>()[0], state.get(*errors).values<float>()[0]};
}

TEST(RoundGradientsKernel, CarriesWhatItLosesInUnits) {
  const RoundedOnce first = round_once(1.0F + 0x1p-9F, 0.0F, 4.0F, 1.0F);
  EXPECT_EQ(first.rounded, 1.0F);
  EXPECT_EQ(first.error, 0x1p-11F);
  const RoundedOnce second = round_once(1.0F + 0x1p-9F, 3 * 0x1p-11F, 4.0F, 1.0F);
  EXPECT_EQ(second.rounded, 1.0F + 0x1p-7F);
  EXPECT_EQ(second.error, 0.0F);
}

TEST(RoundGradientsKernel, IgnoresErrorsThatAreNotKeptWhateverTheyHold) {
  const RoundedOnce result =
      round_once(1.0F + 0x1p-9F, std::numeric_limits<float>::quiet_NaN(), 2.0F, 0.0F);
  EXPECT_EQ(result.rounded, 1.0F);
  EXPECT_EQ(result.error, 0x1p-10F);
}

TEST(RoundGradientsKernel, WithoutAUnitErrorsStayAsTheyAre) {
  const RoundedOnce result = round_once(1.0F + 0x1p-9F, 0.25F, 0.0F, 1.0F);
  EXPECT_EQ(result.rounded, 1.0F);
  EXPECT_EQ(result.error, 0.25F);
}

TEST(RoundGradientsKernel, WhatIsNotFiniteLeavesNoError) {
  for (const float gradient : {std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN(), 70000.0F}) {
    const RoundedOnce result = round_once(gradient, 0.5F, 2.0F, 1.0F, DType::F16);
    EXPECT_FALSE(std::isfinite(result.rounded));
    EXPECT_EQ(result.error, 0.0F);
  }
}

TEST(UpdateKernels, BlockedParametersAreUpdatedWithTheirPadding) {
  Graph graph;
  const Layout blocked{.order = {0}, .blocks = {{0, 8}}};
  std::vector<Value> list;
  for (const char* name : {"p", "g", "m", "v"}) {
    list.push_back(graph.variable(random_variable(name, {5})));
    graph.info(list.back().id()).layout = blocked;
  }
  update({.rate = graph.input("rate", {DType::F32, {}}),
          .scale = graph.input("scale", {DType::F32, {}}),
          .step = graph.input("step", {DType::I64, {}}),
          .parameters = {list[0]},
          .gradients = {list[1]},
          .slots = {{list[2]}, {list[3]}}},
         "adam", {});
  const KernelCall call{graph, graph.nodes().back()};
  const auto kernel = reference_kernels().find(call).make(call);
  const float rate = 0.1f;
  const float scale = 1.0f;
  const std::int64_t step = 1;
  std::array<float, 8> p{1, 1, 1, 1, 1, 0, 0, 0};
  std::array<float, 8> g{1, 1, 1, 1, 1, 0, 0, 0};
  std::array<float, 8> m{};
  std::array<float, 8> v{};
  Binding binding;
  const auto add = [&](const auto* data) {
    binding.inputs.push_back(reinterpret_cast<const std::byte*>(data));
  };
  add(&rate);
  add(&scale);
  add(&step);
  for (auto* array : {&p, &g, &m, &v}) add(array->data());
  kernel->bind(binding);
  kernel->run(*host().make_stream());
  EXPECT_NEAR(p[4], 0.9f, 1e-6f);
  EXPECT_EQ(p[5], 0.0f);
  EXPECT_EQ(p[7], 0.0f);
}

// Trains a convolution whose filters are padded to whole blocks for some steps: garbage in the
// padding would change the loss.
double loss_after_steps(const KernelLibrary& library, int steps) {
  Graph graph;
  const Value image = graph.input("image", {DType::F32, {2, 6, 6, 3}});
  std::vector<Value> parameters;
  std::vector<Value> slots[2];
  const auto variable = [&](std::string name, Shape shape) {
    return graph.variable(random_variable(std::move(name), std::move(shape)));
  };
  const auto zeros = [&](std::string name, Shape shape) {
    return graph.variable(zero_variable(std::move(name), std::move(shape)));
  };
  for (const auto& [name, shape] : std::vector<std::pair<std::string, Shape>>{
           {"first", {3, 3, 3, 5}}, {"second", {3, 3, 5, 11}}}) {
    parameters.push_back(variable(name, shape));
    slots[0].push_back(zeros(name + "/m", shape));
    slots[1].push_back(zeros(name + "/v", shape));
  }
  const Value loss = reduce_mean(square(conv2d(conv2d(image, parameters[0]), parameters[1])));
  std::vector<Value> grads = gradients(loss, parameters);
  graph.output("norm", global_norm(grads));
  update({.rate = graph.scalar(0.01, DType::F32),
          .scale = graph.scalar(1.0, DType::F32),
          .step = graph.input("step", {DType::I64, {}}),
          .parameters = parameters,
          .gradients = grads,
          .slots = {slots[0], slots[1]}},
         "adam", {{"epsilon", 0.0}});
  graph.output("loss", loss);
  State state(host(), 1);
  Executor executor(plan_for(std::move(graph), library), library, state);
  Tensor input = executor.input("image");
  fill(input, {}, 7, 7);
  for (int i = 0; i < steps; ++i) {
    executor.input("step").values<std::int64_t>()[0] = i + 1;
    executor.run();
  }
  EXPECT_TRUE(std::isfinite(executor.output("norm").item()));
  return executor.output("loss").item();
}

TEST(UpdateKernels, WithoutEpsilonNothingSpreadsFromThePadding) {
  const double expected = loss_after_steps(reference_kernels(), 4);
  EXPECT_TRUE(std::isfinite(expected));
  EXPECT_NEAR(loss_after_steps(cpu_kernels(), 4), expected, 1e-3 * expected);
}

TEST(UpdateKernels, TheNormTakesGradientsInTheirLayout) {
  Graph graph;
  const Value image = graph.input("image", {DType::F32, {2, 6, 6, 8}});
  const Value dy = graph.input("dy", {DType::F32, {2, 4, 4, 16}});
  graph.output("norm", global_norm(conv2d_grad_filter(image, dy, {3, 3, 8, 16}, false, {})));
  optimize(graph, cpu_kernels());
  std::vector<Op> producers;
  for (const Node& node : graph.nodes()) {
    if (node.op == Op::GlobalNorm) producers.push_back(graph.producer(node.inputs[0]).op);
  }
  EXPECT_EQ(producers, std::vector<Op>{Op::Conv2DGradFilter});
}

TEST(UpdateKernels, TheNormIsOverAllElements) {
  const Tensor norm = evaluate({floats({3}), floats({0, 4}), floats({12})},
                               [](std::span<const Value> in) { return global_norm(in); });
  EXPECT_EQ(norm.item(), 13.0);
}

TEST(UpdateKernels, TheNormOfManyElementsKeepsItsPrecision) {
  const std::vector<float> values(1'000'003, 0.1f);
  const Tensor norm =
      evaluate({floats(values)}, [](std::span<const Value> in) { return global_norm(in); });
  EXPECT_FLOAT_EQ(static_cast<float>(norm.item()),
                  static_cast<float>(static_cast<double>(0.1f) * std::sqrt(1'000'003.0)));
}

TEST(UpdateKernels, WrongCountsAndTypesAreRefused) {
  Graph graph;
  const auto variable = [&](const char* name, Shape shape, DType dtype = DType::F32) {
    return graph.variable(random_variable(name, std::move(shape), false, dtype));
  };
  UpdateInputs inputs{.rate = graph.input("rate", {DType::F32, {}}),
                      .scale = graph.input("scale", {DType::F32, {}}),
                      .step = graph.input("step", {DType::I64, {}}),
                      .parameters = {variable("p", {3})},
                      .gradients = {variable("g", {3})},
                      .slots = {}};
  EXPECT_NO_THROW(update(inputs, "sgd", {}));
  EXPECT_THROW(update(inputs, "adam", {}), UsageError);
  EXPECT_THROW(update(inputs, "newton", {}), UsageError);
  inputs.gradients = {variable("g2", {4})};
  EXPECT_THROW(update(inputs, "sgd", {}), UsageError);
  inputs.gradients = {};
  EXPECT_THROW(update(inputs, "sgd", {}), UsageError);
}

TEST(AssignKernels, OtherTypesAreRefused) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {3}});
  EXPECT_THROW(assign(random_variable("v", {4}), x), UsageError);
  EXPECT_THROW(assign(random_variable("v", {3}, false, DType::F64), x), UsageError);
}

}  // namespace
}  // namespace lockstep
