// Training with recomputation: the bits of training without it, in less memory.
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/autodiff/gradients.h"
#include "lockstep/graph/recomputed.h"
#include "lockstep/nn/applications/applications.h"
#include "lockstep/runtime/session.h"
#include "lockstep/train/function.h"
#include "lockstep/train/model_step.h"
#include "train/problem.h"
#include "train/replica_runs.h"

namespace lockstep::testing {
namespace {

// Convolutions with batch norm, synchronised in one place, residual connections, and dropout.
Model recompute_cnn() {
  const Symbol input = Input({.shape = {12, 12, 1}});
  Symbol x =
      Activation("relu")(BatchNormalization()(Conv2D({.filters = 8, .padding = "same"})(input)));
  for (const bool synchronized : {false, true, false}) {
    Symbol y = Conv2D({.filters = 8, .padding = "same"})(x);
    y = Activation("relu")(BatchNormalization({.synchronized = synchronized})(y));
    y = Dropout({.rate = 0.2})(y);
    y = BatchNormalization()(Conv2D({.filters = 8, .padding = "same"})(y));
    x = Activation("relu")(Add()({y, x}));
  }
  return Model(input, Dense({.units = 4})(Dropout({.rate = 0.3})(GlobalAveragePooling2D()(x))));
}

// Embeddings, layer norms, products and dropout.
Model recompute_text() {
  const Symbol input = Input({.shape = {16}, .dtype = DType::I32});
  Symbol x = Embedding({.input_dim = 20, .output_dim = 16})(input);
  for (int n = 0; n < 4; ++n) {
    Symbol y = Dense({.units = 32, .activation = "relu"})(LayerNormalization()(x));
    y = Dropout({.rate = 0.1})(Dense({.units = 16})(y));
    x = Add()({x, y});
  }
  return Model(input, Dense({.units = 4})(Flatten()(LayerNormalization()(x))));
}

Tensor recompute_words(std::int64_t samples) {
  Tensor words(DType::I32, {samples, 16});
  RandomSequence random(4, 9);
  for (std::int32_t& word : words.values<std::int32_t>()) {
    word = static_cast<std::int32_t>(random.below(20));
  }
  return words;
}

struct RecomputedRun {
  std::vector<double> losses;
  std::vector<Tensor> weights;
  std::size_t peak_bytes = 0;
};

RecomputedRun run_recomputed(Model model, const Tensor& x, const Tensor& y, int replicas,
                             const std::string& precision, const Recompute& recompute) {
  CompileOptions options = with_adam();
  options.strategy = mirrored(replicas);
  options.precision = precision;
  options.recompute = recompute;
  model.compile(options);
  LossesOf losses;
  // The last batch is a short one.
  const Dataset batches = Dataset::from_tensor_slices({x, y}).batch(16);
  const History history = model.fit(batches, {.epochs = 2, .callbacks = {losses.callback()}});
  return {losses.losses, model.weights(), history.peak_bytes};
}

class RecomputeOf : public ::testing::TestWithParam<std::tuple<const char*, const char*, int>> {};

TEST_P(RecomputeOf, AnyKindGivesTheBitsOfNone) {
  const char* const network = std::get<0>(GetParam());
  const char* const precision = std::get<1>(GetParam());
  const int replicas = std::get<2>(GetParam());
  const bool text = std::string(network) == "text";
  const Samples samples = make_samples(40);
  const Tensor x = text ? recompute_words(40) : samples.x;
  const auto run = [&](const Recompute& recompute) {
    return run_recomputed(text ? recompute_text() : recompute_cnn(), x, samples.y, replicas,
                          precision, recompute);
  };
  const RecomputedRun plain = run({});
  const std::string tight = std::to_string(plain.peak_bytes * 4 / 5) + "B";
  for (const std::string& recompute : {std::string("blocks"), tight}) {
    const RecomputedRun other = run(recompute);
    EXPECT_EQ(other.losses, plain.losses) << recompute;
    EXPECT_LT(other.peak_bytes, plain.peak_bytes) << recompute;
    ASSERT_EQ(other.weights.size(), plain.weights.size());
    for (std::size_t i = 0; i < plain.weights.size(); ++i) {
      EXPECT_TRUE(other.weights[i].same_bits(plain.weights[i])) << recompute << ", weight " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, RecomputeOf,
                         ::testing::Combine(::testing::Values("cnn", "text"),
                                            ::testing::Values("float32", "mixed_bfloat16",
                                                              "mixed_float16"),
                                            ::testing::Values(1, 2)),
                         [](const auto& name) {
                           return fmt::format("{}_{}_{}", std::get<0>(name.param),
                                              std::get<1>(name.param), std::get<2>(name.param));
                         });

std::size_t recompute_copies(const Plan& plan) {
  return static_cast<std::size_t>(std::ranges::count_if(plan.graph.nodes(), is_recomputed));
}

// The plans of a training step of a network, one for each recompute option.
class RecomputedPlans {
 public:
  RecomputedPlans(std::shared_ptr<Network> network, ValueType input, Session& session)
      : network_(std::move(network)), input_(std::move(input)), session_(session) {}

  StepRecipe recipe(const Recompute& recompute) const {
    return {.network = *network_,
            .loss = loss_,
            .optimizer = optimizer_,
            .loss_mean = mean_,
            .metrics = {},
            .weighted_metrics = {},
            .memory = {.recompute = recompute}};
  }
  StepRequest request() const {
    const std::int64_t batch = input_.shape[0];
    return request_step(
        session_.world(), optimizer_,
        {.mode = StepMode::Train, .inputs = {input_}, .labels = {DType::I32, Shape{batch}}},
        split_evenly(batch, session_.world().size()));
  }
  Plan plan(const Recompute& recompute) const {
    return std::move(plan_step(session_, recipe(recompute), request()).step.front());
  }

 private:
  std::shared_ptr<Network> network_;
  ValueType input_;
  Session& session_;
  Loss loss_ = SparseCategoricalCrossentropy({.from_logits = true});
  Optimizer optimizer_ = SGD({.learning_rate = 0.1, .momentum = 0.9});
  Metric mean_ = LossMean("loss");
};

TEST(RecomputePlans, ResNet50HasHalfOfItsPeakForATwentiethMoreArithmetic) {
  Session session({});
  const RecomputedPlans plans(applications::resnet({.depth = 50}), {DType::F32, {16, 224, 224, 3}},
                              session);
  const Plan plain = plans.plan("none");
  const std::size_t half = plain.peak_bytes() / 2;
  const Plan small = plans.plan(std::to_string(half) + "B");
  EXPECT_LE(small.peak_bytes(), half);
  EXPECT_GT(recompute_copies(small), 0u);
  EXPECT_LE(small.total_cost().flops, 1.05 * plain.total_cost().flops);
}

TEST(RecomputePlans, ResNet152IsSolvedForTwoFifthsOfItsPeak) {
  Session session({});
  const RecomputedPlans plans(applications::resnet({.depth = 152}), {DType::F32, {16, 224, 224, 3}},
                              session);
  const Plan plain = plans.plan("none");
  const std::size_t budget = plain.peak_bytes() * 2 / 5;
  const Plan small = plans.plan(std::to_string(budget) + "B");
  EXPECT_LE(small.peak_bytes(), budget);
  EXPECT_LE(small.total_cost().flops, 1.3 * plain.total_cost().flops);
}

TEST(RecomputePlans, TheMemoryPlannedIsTheMemoryAllocated) {
  CpuDevice device(0, std::vector{available_cores().front()});
  Session session({.device = &device, .kernels = &cpu_kernels()});
  const RecomputedPlans plans(
      applications::resnet(
          {.depth = 18, .input_shape = {32, 32, 3}, .classes = 4, .small_input = true}),
      {DType::F32, {8, 32, 32, 3}}, session);
  const std::size_t whole = plans.plan("none").peak_bytes();
  const Recompute recompute(std::to_string(whole * 9 / 10) + "B");
  const Plan plan = plans.plan(recompute);
  EXPECT_GT(recompute_copies(plan), 0u);
  EXPECT_LE(plan.peak_bytes(), whole * 9 / 10);
  StepCache cache;
  const CompiledStep& step = compile_step(cache, session, plans.recipe(recompute), plans.request());
  EXPECT_EQ(step.plan().arena_bytes, plan.arena_bytes);
  const PlanBytes said = bytes_on(device, plan);
  EXPECT_EQ(session.resident_bytes(), said.total() - said.constants);
  EXPECT_EQ(session.resident_bytes(), device.bytes_in_use());
}

TEST(RecomputePlans, BucketsStillOverlapTheBackwardPassAndAreNotMore) {
  const Strategy strategy =
      mirrored(2, {.buckets = {.first_bytes = 64 * 1024, .bytes = 1024 * 1024}});
  Session session({.world = impl_of(strategy).world});
  const RecomputedPlans plans(
      applications::resnet(
          {.depth = 18, .input_shape = {32, 32, 3}, .classes = 4, .small_input = true}),
      {DType::F32, {16, 32, 32, 3}}, session);
  const auto communicated = [](const Plan& plan) {
    return std::ranges::count(plan.instructions, kCommunicationStream, &Instruction::stream);
  };
  const Plan plain = plans.plan("none");
  const Plan plan = plans.plan("blocks");
  EXPECT_EQ(communicated(plan), communicated(plain));
  // As much of the backward pass as before runs after the first bucket has been handed over.
  const auto gradients_after_first_bucket = [](const Plan& each) {
    const auto first =
        std::ranges::find(each.instructions, kCommunicationStream, &Instruction::stream);
    return std::count_if(first, each.instructions.end(), [&](const Instruction& instruction) {
      return instruction.stream == kComputeStream && is_gradient(each.graph.node(instruction.node));
    });
  };
  EXPECT_GT(recompute_copies(plan), 0u);
  EXPECT_GT(gradients_after_first_bucket(plain), 20);
  EXPECT_EQ(gradients_after_first_bucket(plan), gradients_after_first_bucket(plain));
}

TEST(RecomputeMarks, AMarkedLayerKeepsItsNamesAndTheBits) {
  const Samples samples = make_samples(32);
  const auto make = [](bool marked) {
    const auto block = [&] {
      Layer layer = Sequential({Conv2D({.filters = 16, .padding = "same"}), BatchNormalization(),
                                Activation("relu"), Dropout({.rate = 0.2}),
                                Conv2D({.filters = 16, .padding = "same"}), BatchNormalization(),
                                Activation("relu")});
      return marked ? checkpoint(layer) : layer;
    };
    return Sequential({block(), block(), block(), GlobalAveragePooling2D(), Dense(4)});
  };
  const RecomputedRun plain =
      run_recomputed(make(false), samples.x, samples.y, 1, "float32", "none");
  const RecomputedRun ignored =
      run_recomputed(make(true), samples.x, samples.y, 1, "float32", "none");
  const RecomputedRun marked =
      run_recomputed(make(true), samples.x, samples.y, 1, "float32", "blocks");
  EXPECT_EQ(ignored.peak_bytes, plain.peak_bytes);
  EXPECT_LT(marked.peak_bytes, plain.peak_bytes);
  EXPECT_EQ(marked.losses, plain.losses);
  for (std::size_t i = 0; i < plain.weights.size(); ++i) {
    EXPECT_TRUE(marked.weights[i].same_bits(plain.weights[i])) << i;
  }
  Sequential a = make(false);
  Sequential b = make(true);
  a.build({12, 12, 1});
  b.build({12, 12, 1});
  for (std::size_t i = 0; i < a.variables().size(); ++i) {
    EXPECT_EQ(a.variables()[i]->name, b.variables()[i]->name);
  }
}

TEST(RecomputeFunction, GivesTheBitsOfFitWithout) {
  const Samples samples = make_samples(32);
  const auto train = [&](const Recompute& recompute) {
    Model model = recompute_cnn();
    model.compile(with_adam());
    model.build({12, 12, 1});
    const Optimizer optimizer = Adam({.learning_rate = 0.01});
    Function step(model,
                  [&](Value x, Value y) {
                    const LossPair loss = sparse_categorical_crossentropy(
                        y, model(x, {.training = true}), {.from_logits = true});
                    optimizer.apply(gradients(loss, model.trainable_variables()));
                    return loss;
                  },
                  {.recompute = recompute});
    std::vector<double> losses;
    for (int n = 0; n < 3; ++n) losses.push_back(step(samples.x, samples.y).item());
    return std::pair(losses, model.weights());
  };
  const auto [losses, weights] = train("none");
  const auto [again_losses, again_weights] = train("blocks");
  EXPECT_EQ(losses, again_losses);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    EXPECT_TRUE(weights[i].same_bits(again_weights[i])) << i;
  }
}

TEST(RecomputePlans, ABudgetThatCannotBeMetStopsBeforeTheFirstStep) {
  const Samples samples = make_samples(16);
  Model model = recompute_cnn();
  CompileOptions options = with_adam();
  options.recompute = "10kB";
  model.compile(options);
  const std::string message = message_of<UsageError>([&] {
    model.fit(Dataset::from_tensor_slices({samples.x, samples.y}).batch(16));
  });
  EXPECT_NE(message.find("it needs"), std::string::npos) << message;
  EXPECT_EQ(model.step(), 0);
}

}  // namespace
}  // namespace lockstep::testing
