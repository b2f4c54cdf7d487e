// Training, the short last batch, evaluation, prediction and functions of the user's own compute in
// one memory: what a model has on its device is its variables, the largest of its plans, and little
// else; and no number changes.
#include <gtest/gtest.h>

#include <algorithm>

#include "late_device.h"
#include "lockstep/autodiff/gradients.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/runtime/session.h"
#include "lockstep/train/function.h"
#include "lockstep/train/model_step.h"
#include "train/problem.h"

namespace lockstep::testing {
namespace {

class SharedMemory : public ::testing::TestWithParam<const char*> {
 protected:
  SharedMemory() {
    if (std::string(GetParam()) == "cpu") {
      device_ = std::make_unique<CpuDevice>(0, std::vector{available_cores().front()});
    } else {
      device_ = std::make_unique<LateDevice>();
    }
  }
  CompileOptions options() const {
    CompileOptions options = with_adam();
    options.device = device_.get();
    options.kernels = &cpu_kernels();
    return options;
  }

  std::unique_ptr<Device> device_;
};

TEST_P(SharedMemory, IsThatOfTheLargestStep) {
  const std::shared_ptr<Network> network =
      Network::sequential({Dense({.units = 64, .activation = "relu"}), Dense({.units = kClasses})});
  const Loss loss = SparseCategoricalCrossentropy({.from_logits = true});
  const Optimizer optimizer = Adam();
  const Metric mean = LossMean("loss");
  const StepRecipe recipe{.network = *network,
                          .loss = loss,
                          .optimizer = optimizer,
                          .loss_mean = mean,
                          .metrics = {},
                          .weighted_metrics = {}};
  Session session({.device = device_.get(), .kernels = &cpu_kernels()});
  StepCache cache;
  struct Made {
    StepMode mode;
    std::int64_t batch;
  };
  std::size_t before = 0;
  std::size_t largest = 0;
  std::size_t sum = 0;
  for (const Made& made : {Made{StepMode::Train, 256}, Made{StepMode::Train, 37},
                           Made{StepMode::Evaluate, 256}, Made{StepMode::Predict, 100}}) {
    const CompiledStep& step =
        compile_step(cache, session, recipe,
                     request_step(session.world(), optimizer,
                                  {.mode = made.mode,
                                   .inputs = {{DType::F32, {made.batch, kFeatures}}},
                                   .labels = {DType::I32, Shape{made.batch}}},
                                  split_evenly(made.batch, 1)));
    const Plan& plan = step.plan();
    sum += plan.arena_bytes;
    largest = std::max(largest, plan.arena_bytes);
    EXPECT_EQ(session.resident_bytes(), device_->bytes_in_use());
    if (before > 0) {
      // Inputs and outputs, or where they land; twice at most.
      EXPECT_LE(session.resident_bytes(), before + 2 * plan.input_output_bytes + 1024);
    }
    before = session.resident_bytes();
  }
  EXPECT_GT(sum, largest + largest / 4);
}

TEST_P(SharedMemory, AValidationThatNeedsMoreMemoryChangesNoBit) {
  const Problem data = make_images(3 * 16 + 5);
  const Problem held_out = make_images(200, 4);
  const auto train = [&](std::optional<Dataset> validation) {
    const std::size_t of_others = device_->bytes_in_use();
    Sequential model = make_conv_model();
    model.compile(options());
    const History history =
        model.fit(shuffled_batches(data), {.epochs = 3, .validation_data = std::move(validation)});
    EXPECT_EQ(history.peak_bytes, device_->bytes_in_use() - of_others);
    return model;
  };
  const Sequential without = train({});
  const Sequential with = train(Dataset::from_tensor_slices({held_out.x, held_out.y}).batch(200));
  EXPECT_TRUE(same_weights(without, with));
}

TEST_P(SharedMemory, FunctionsThatTakeTurnsChangeNoBit) {
  const Problem data = make_problem(64);
  const auto run = [&](bool in_turns) {
    Sequential model = make_model();
    model.compile(options());
    model.build({kFeatures});
    const Optimizer optimizer = SGD({.learning_rate = 0.1});
    Function grow(model, [&](Value x, Value y) {
      const LossPair loss =
          sparse_categorical_crossentropy(y, model(x, {.training = true}), {.from_logits = true});
      optimizer.apply(gradients(loss, model.trainable_variables()));
      return loss;
    });
    Function look(model, [&](Value x) { return exp(model(x)); });
    for (int round = 0; round < 4; ++round) {
      const std::int64_t rows = 16 * (round % 2 + 1);
      grow(data.x.rows(0, rows), data.y.rows(0, rows));
      if (in_turns) {
        const Tensor seen = look(data.x.rows(0, 64));
        EXPECT_TRUE(look(data.x.rows(0, 64)).same_bits(seen));
      }
    }
    return model.weights();
  };
  const std::vector<Tensor> alone = run(false);
  const std::vector<Tensor> in_turns = run(true);
  ASSERT_EQ(alone.size(), in_turns.size());
  for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(alone[i].same_bits(in_turns[i]));
}

TEST_P(SharedMemory, APlanIsMadeWithoutIt) {
  int initialised = 0;
  const auto counted = [&](Tensor& start, std::uint64_t) {
    ++initialised;
    std::ranges::fill(start.values<float>(), 0.5f);
  };
  const auto weight = std::make_shared<Variable>();
  weight->name = "weight";
  weight->shape = Shape{64, 64};
  weight->initializer = counted;
  const auto step = [&] {
    Graph graph;
    const Value x = graph.input("x", {DType::F32, {8, 64}});
    const Value w = graph.variable(weight);
    const Value loss = reduce_sum(tanh(matmul(x, w)));
    UpdateInputs inputs;
    inputs.rate = graph.scalar(0.1);
    inputs.scale = graph.scalar(1.0);
    inputs.step = graph.scalar(1, DType::I64);
    inputs.parameters = {w};
    inputs.gradients = gradients(loss, inputs.parameters);
    update(inputs, "sgd", {{"momentum", 0.0}, {"nesterov", false}});
    graph.output("loss", loss);
    return graph;
  };
  Session session({.device = device_.get(), .kernels = &cpu_kernels()});
  const auto requests = [&] {
    std::vector<CompileRequest> made(1);
    made[0].graph = step();
    return made;
  };
  const Plan plan = std::move(session.plan(requests()).front());
  EXPECT_EQ(device_->bytes_in_use(), 0u);
  EXPECT_EQ(device_->peak_bytes(), 0u);
  EXPECT_EQ(initialised, 0);
  // What it says is what there is when it runs.
  const auto executor = std::move(session.compile(requests()).front());
  EXPECT_EQ(executor->plan().arena_bytes, plan.arena_bytes);
  const PlanBytes said = bytes_on(*device_, plan);
  const std::size_t elsewhere = device_->shares_host_memory() ? said.constants : 0;
  const std::size_t fault = device_->shares_host_memory() ? 0 : sizeof(Fault);
  EXPECT_EQ(session.resident_bytes(), said.total() - elsewhere + fault);
  EXPECT_EQ(initialised, 1);
}

INSTANTIATE_TEST_SUITE_P(Devices, SharedMemory, ::testing::Values("cpu", "late"),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace lockstep::testing
