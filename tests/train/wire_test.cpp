// Training with gradients that are communicated in 16 bits.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "lockstep/base/crc32c.h"
#include "lockstep/comm/gloo/gloo_wire.h"
#include "lockstep/train/model_impl.h"
#include "temporary_folder.h"
#include "train/problem.h"
#include "train/replica_runs.h"
#include "train/worker_processes.h"

namespace lockstep::testing {
namespace {

Model wire_cnn() {
  return Sequential({Conv2D({.filters = 8, .kernel_size = 3}),
                     BatchNormalization({.synchronized = true}), Activation("relu"),
                     MaxPooling2D({.pool_size = 2}), Conv2D({.filters = 16, .kernel_size = 3}),
                     Activation("relu"), Flatten(), Dense({.units = 4})});
}

// Reads each image as a line of words.
Model wire_words() {
  return Sequential({Embedding({.input_dim = 16, .output_dim = 8}), LayerNormalization(), Flatten(),
                     Dense({.units = 24, .activation = "relu"}), LayerNormalization(),
                     Dense({.units = 4})});
}

struct WireData {
  Dataset images;
  Dataset words;
};

WireData wire_data() {
  const Samples samples = make_samples(70);
  Tensor words(DType::I32, {70, 144});
  for (std::size_t i = 0; i < 70 * 144; ++i) {
    const float pixel = samples.x.values<float>()[i];
    words.values<std::int32_t>()[i] =
        std::clamp(static_cast<std::int32_t>((pixel + 0.5F) * 8.0F), 0, 15);
  }
  return {Dataset::from_tensor_slices({samples.x, samples.y}).batch(20),
          Dataset::from_tensor_slices({words, samples.y}).batch(20)};
}

CompileOptions wire_options(const Strategy& strategy, const std::string& gradient_dtype,
                            const Optimizer& optimizer = Adam({.learning_rate = 0.003})) {
  CompileOptions options = {.strategy = strategy,
                            .optimizer = optimizer,
                            .loss = SparseCategoricalCrossentropy({.from_logits = true})};
  options.loss_scale.initial = 256;  // for float16: no step is skipped
  options.seed = 5;
  options.gradient_dtype = gradient_dtype;
  return options;
}

std::vector<double> wire_losses(Model model, const CompileOptions& options, const Dataset& batches,
                                std::int64_t epochs) {
  model.compile(options);
  LossesOf seen;
  model.fit(batches, {.epochs = epochs, .callbacks = {seen.callback()}});
  return seen.losses;
}

// Bytes that a replica's plan of a training step gives to collectives.
std::size_t wire_bytes(const std::string& gradient_dtype, int shard = 0) {
  Model model = wire_cnn();
  CompileOptions options = wire_options(mirrored(2), gradient_dtype);
  options.shard = shard;
  model.compile(options);
  return impl_of(model)
      .plan_of({.mode = StepMode::Train,
                .inputs = {{DType::F32, {20, 12, 12, 1}}},
                .labels = {DType::I32, {20}}})
      .collective_bytes();
}

// A folder that all workers have.
std::filesystem::path wire_folder(const TemporaryFolder& own) {
  if (TestWorker::current() == nullptr) return own.path();
  return std::getenv("LOCKSTEP_TEST_FOLDER");
}

struct WireCase {
  std::string dtype;
  int replicas;
};

void PrintTo(const WireCase& wire, std::ostream* out) {
  *out << wire.dtype << " on " << wire.replicas;
}

class GradientsIn : public ::testing::TestWithParam<WireCase> {};

INSTANTIATE_TEST_SUITE_P(SixteenBits, GradientsIn,
                         ::testing::Values(WireCase{"bfloat16", 2}, WireCase{"bfloat16", 3},
                                           WireCase{"float16", 2}),
                         [](const auto& info) {
                           return info.param.dtype + std::to_string(info.param.replicas);
                         });

TEST_P(GradientsIn, TrainAsF32Does) {
  const WireData data = wire_data();
  const auto& dtype = GetParam().dtype;
  const int replicas = GetParam().replicas;
  const bool words_too = TestWorker::current() == nullptr;
  for (const bool words : {false, true}) {
    if (words && !words_too) continue;
    const Dataset& batches = words ? data.words : data.images;
    const auto run = [&](const std::string& type) {
      return wire_losses(words ? wire_words() : wire_cnn(), wire_options(mirrored(replicas), type),
                         batches, 8);
    };
    const std::vector<double> whole = run("float32");
    const std::vector<double> rounded = run(dtype);
    ASSERT_EQ(whole.size(), rounded.size());
    EXPECT_LT(whole.back(), 0.7 * whole.front());
    EXPECT_NE(whole, rounded);
    EXPECT_EQ(whole[0], rounded[0]);
    for (std::size_t i = 1; i < whole.size(); ++i) {
      EXPECT_NEAR(whole[i], rounded[i], 0.03) << "step " << i << (words ? " of words" : "");
    }
  }
}

TEST_P(GradientsIn, TheSameReplicasGiveTheSameBits) {
  const auto& dtype = GetParam().dtype;
  const int replicas = GetParam().replicas;
  const auto run = [&] {
    return wire_losses(wire_cnn(), wire_options(mirrored(replicas), dtype), wire_data().images, 2);
  };
  EXPECT_EQ(run(), run());
}

TEST(GradientsOnTheWire, TakeHalfTheBytes) {
  const std::size_t whole = wire_bytes("float32");
  const std::size_t rounded = wire_bytes("bfloat16");
  EXPECT_GT(whole, 7000U);
  EXPECT_LE(rounded, whole / 2 + 200);  // statistics of batch norm stay f32
}

TEST(GradientsOnTheWire, WorkWithEveryRuleAndWithClipping) {
  const Optimizer rules[] = {SGD({.learning_rate = 0.05, .momentum = 0.9, .global_clipnorm = 1.0}),
                             AdamW({.learning_rate = 0.003, .clipnorm = 0.5}),
                             LAMB({.learning_rate = 0.01}), LARS({.learning_rate = 1.0})};
  for (const Optimizer& rule : rules) {
    // Replicas are compared after every step.
    const std::vector<double> losses =
        wire_losses(wire_cnn(), wire_options(mirrored(2), "bfloat16", rule), wire_data().images, 5);
    EXPECT_LT(losses.back(), losses.front()) << rule.name();
  }
}

TEST(GradientsOnTheWire, WorkInMixedPrecision) {
  for (const auto& [precision, dtype] : std::vector<std::pair<std::string, std::string>>{
           {"mixed_bfloat16", "bfloat16"}, {"mixed_float16", "float16"}}) {
    CompileOptions options = wire_options(mirrored(2), dtype);
    options.precision = precision;
    const std::vector<double> losses = wire_losses(wire_cnn(), options, wire_data().images, 6);
    EXPECT_LT(losses.back(), 0.8 * losses.front()) << precision;
  }
}

// Ranks that have slices of slots, or of parameters too, scatter rounded gradients instead of
// all-reducing them: each sum is rounded once in both.
class GradientsOfSlices : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(, GradientsOfSlices, ::testing::Values(1, 2, 3));

TEST_P(GradientsOfSlices, GiveTheBitsOfWholeStateInSixteenBits) {
  const WireData data = wire_data();
  struct Types {
    std::string precision;
    std::string gradients;
  };
  for (const Types& types :
       {Types{"float32", "bfloat16"}, Types{"float32", "float16"},
        Types{"mixed_bfloat16", "bfloat16"}, Types{"mixed_float16", "float16"}}) {
    for (const int replicas : {2, 3}) {
      const auto run = [&](int shard) {
        Model model = wire_cnn();
        CompileOptions options = wire_options(mirrored(replicas), types.gradients);
        options.precision = types.precision;
        options.shard = shard;
        model.compile(options);
        model.fit(data.images, {.epochs = 2});
        return model;
      };
      EXPECT_TRUE(same_weights(run(0), run(GetParam())))
          << types.precision << " " << types.gradients;
    }
  }
}

TEST_P(GradientsOfSlices, TrainWithEveryRuleAndSkipStepsThatOverflow) {
  const Dataset batches = wire_data().images;
  const Optimizer rules[] = {SGD({.learning_rate = 0.05, .momentum = 0.9, .global_clipnorm = 1.0}),
                             AdamW({.learning_rate = 0.003, .clipnorm = 0.5}),
                             LAMB({.learning_rate = 0.01})};
  for (const Optimizer& rule : rules) {
    CompileOptions options = wire_options(mirrored(2), "bfloat16", rule);
    const std::vector<double> whole = wire_losses(wire_cnn(), options, batches, 2);
    options.shard = GetParam();
    const std::vector<double> slices = wire_losses(wire_cnn(), options, batches, 2);
    ASSERT_EQ(whole.size(), slices.size());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      EXPECT_NEAR(whole[i], slices[i], 1e-3) << rule.name() << " " << i;
    }
  }
  CompileOptions options = wire_options(mirrored(2), "float16");
  options.loss_scale = {.initial = 4194304, .growth_steps = 3};
  options.shard = GetParam();
  Model model = wire_cnn();
  model.compile(options);
  EXPECT_GT(model.fit(batches, {.epochs = 3}).overflowed_steps, 1);
}

TEST_P(GradientsOfSlices, HalveTheBytesOfTheReduceScatter) {
  const std::size_t whole = wire_bytes("float32", GetParam());
  const std::size_t rounded = wire_bytes("bfloat16", GetParam());
  EXPECT_LT(rounded, whole);
  // Parameters are gathered in f32, once after the update, or in the forward and the backward pass.
  EXPECT_LE(rounded, whole - wire_bytes("float32") / 2 + 400);
}

// A checkpoint of whole state goes on with slices, errors included, and the other way round.
TEST_P(GradientsOfSlices, ARunGoesOnWithAnotherShardBitForBit) {
  const TemporaryFolder own;
  const std::filesystem::path folder = wire_folder(own);
  const Dataset batches = wire_data().images;
  const auto compiled = [&](int shard) {
    Model model = wire_cnn();
    CompileOptions options = wire_options(mirrored(2), "bfloat16");
    options.shard = shard;
    model.compile(options);
    return model;
  };
  Model straight = compiled(0);
  straight.fit(batches, {.epochs = 2});
  for (const bool whole_first : {true, false}) {
    Model stopped = compiled(whole_first ? 0 : GetParam());
    stopped.fit(batches, {.epochs = 2, .callbacks = {save_and_stop(3, folder / "file")}});
    Model resumed = compiled(whole_first ? GetParam() : 0);
    resumed.fit(batches, {.epochs = 2, .resume = folder / "file"});
    EXPECT_TRUE(same_weights(straight, resumed)) << whole_first;
  }
}

// A sample of the third batch has such a weight that its gradients overflow float16, on the replica
// that has it; the model itself is f32.
TEST(GradientsOnTheWire, AnOverflowOfOneReplicaSkipsTheStepOfAll) {
  Samples data = make_samples(60);
  data.weight.values<float>()[45] = 1e9F;
  const Dataset batches = Dataset::from_tensor_slices({data.x, data.y, data.weight}).batch(20);
  Model model = wire_cnn();
  CompileOptions options = wire_options(mirrored(2), "float16");
  options.loss_scale = {.initial = 256, .growth_steps = 1000};
  model.compile(options);
  const History history = model.fit(batches, {.epochs = 2});
  EXPECT_EQ(history.overflowed_steps, 2);
  EXPECT_EQ(history.loss_scale, 64.0);
  for (const std::vector<float>& weights : weights_of(model)) {
    for (float w : weights) ASSERT_TRUE(std::isfinite(w));
  }
  Session& session = impl_of(model).session();
  for (const VariableRef& parameter : model.trainable_variables()) {
    const VariableRef& error = session.error_feedback().error_of(parameter);
    for (const Tensor& part : session.get_parts(error)) {
      for (float e : part.values<float>()) ASSERT_TRUE(std::isfinite(e)) << parameter->name;
    }
  }
}

TEST(GradientsOnTheWire, ARunOnAsManyReplicasResumesBitForBit) {
  const TemporaryFolder own;
  const std::filesystem::path folder = wire_folder(own);
  const Dataset batches = wire_data().images;  // 4 steps per epoch
  for (const std::string dtype : {"bfloat16", "float16"}) {
    const auto compiled = [&] {
      Model model = wire_cnn();
      CompileOptions options = wire_options(mirrored(2), dtype);
      // Skips steps now and then.
      options.loss_scale = {.initial = 4194304, .growth_steps = 3};
      model.compile(options);
      return model;
    };
    Model straight = compiled();
    const History whole = straight.fit(batches, {.epochs = 3});
    if (dtype == "float16") {
      EXPECT_GT(whole.overflowed_steps, 1);
    }
    for (const std::int64_t step : {1, 2, 5, 6, 7, 8}) {
      Model stopped = compiled();
      stopped.fit(batches, {.epochs = 3, .callbacks = {save_and_stop(step, folder / "file")}});
      Model resumed = compiled();
      resumed.fit(batches, {.epochs = 3, .resume = folder / "file"});
      EXPECT_TRUE(same_weights(straight, resumed)) << dtype << " " << step;
    }
  }
}

Tensor sum_of_errors(const Model& model, std::size_t parameter) {
  Session& session = impl_of(model).session();
  return session.get(session.error_feedback().error_of(model.trainable_variables()[parameter]));
}

TEST(GradientsOnTheWire, OnAnotherNumberOfReplicasWhatIsLackingIsKept) {
  const TemporaryFolder own;
  const std::filesystem::path folder = wire_folder(own);
  const Dataset batches = wire_data().images;
  Model saved = wire_cnn();
  saved.compile(wire_options(mirrored(2), "bfloat16"));
  saved.fit(batches, {.epochs = 2, .callbacks = {save_and_stop(6, folder / "file")}});
  std::vector<Tensor> before;
  double size = 0;
  for (std::size_t i = 0; i < saved.trainable_variables().size(); ++i) {
    before.push_back(sum_of_errors(saved, i));
    for (float e : before.back().values<float>()) size += std::abs(e);
  }
  EXPECT_GT(size, 0.0);
  for (const int replicas : {3, 4}) {
    Model other = wire_cnn();
    other.compile(wire_options(mirrored(replicas), "bfloat16"));
    other.build({12, 12, 1});
    other.load(folder / "file");
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(sum_of_errors(other, i).same_bits(before[i])) << replicas << " " << i;
    }
    other.fit(batches, {.epochs = 2, .resume = folder / "file"});
    EXPECT_EQ(other.step(), 8);
  }
  // One that does not round them leaves them aside, and the other way round.
  Model plain = wire_cnn();
  plain.compile(wire_options(mirrored(2), "float32"));
  plain.fit(batches, {.epochs = 2, .resume = folder / "file"});
  plain.save(folder / "plain");
  Model again = wire_cnn();
  again.compile(wire_options(mirrored(2), "bfloat16"));
  again.build({12, 12, 1});
  again.load(folder / "plain");
  again.fit(batches);
}

TEST(GradientsOnTheWire, LoopsOfTheUsersOwnRoundThem) {
  const Samples samples = make_samples(40);
  const auto loop = [&](const std::string& dtype) {
    const Strategy strategy = mirrored(2);
    Sequential model({Flatten(), Dense({.units = 16, .activation = "relu"}), Dense({.units = 4})});
    const Optimizer optimizer =
        dtype == "float16" ? SGD(0.1).with_loss_scale({.initial = 1024}) : SGD(0.1);
    Function step = strategy.function(
        [&](Value x, Value y) {
          const LossPair loss = sparse_categorical_crossentropy(y, model(x, {.training = true}),
                                                                {.from_logits = true});
          optimizer.apply(gradients(optimizer.scale(loss, 20), model.trainable_variables()));
          return loss;
        },
        {.gradient_dtype = dtype});
    std::vector<double> losses;
    for (int epoch = 0; epoch < 6; ++epoch) {
      for (const auto& batch :
           strategy.distribute(Dataset::from_tensor_slices({samples.x, samples.y}).batch(20))) {
        losses.push_back(strategy.reduce(ReduceOp::Mean, strategy.run(step, batch[0], batch[1])));
      }
    }
    return losses;
  };
  const std::vector<double> whole = loop("float32");
  for (const std::string dtype : {"bfloat16", "float16"}) {
    const std::vector<double> rounded = loop(dtype);
    EXPECT_NE(whole, rounded);
    ASSERT_EQ(whole.size(), rounded.size());
    for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(whole[i], rounded[i], 0.01) << i;
  }
}

TEST(GradientsOnTheWire, AreTheSameOverProcesses) {
  const TemporaryFolder folder;
  setenv("LOCKSTEP_TEST_FOLDER", folder.path().c_str(), 1);
  expect_success(
      "SixteenBits/GradientsIn.*2:GradientsOnTheWire.W*:GradientsOnTheWire.*Number*"
      ":GradientsOnTheWire.*Resumes*:GradientsOnTheWire.AnOverflow*"
      ":*GradientsOfSlices.GiveTheBits*:*GradientsOfSlices.ARun*",
      2);
  unsetenv("LOCKSTEP_TEST_FOLDER");
}

std::string wire_weights_in(const std::string& log) {
  const std::size_t begin = log.find("weights ");
  EXPECT_NE(begin, std::string::npos) << log;
  return log.substr(begin, log.find('\n', begin) - begin);
}

TEST(GradientsOnTheWire, HaveTheBitsOfThreadsOverSharedMemoryAndGloo) {
  const std::vector<std::string> shared = expect_success("WireWorkers.GiveTheBitsOfThreads", 2);
  EXPECT_EQ(wire_weights_in(shared[0]), wire_weights_in(shared[1]));
  if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo";
  for (const std::string& log :
       expect_success("WireWorkers.GiveTheBitsOfThreads", 2, {}, Over::Gloo)) {
    EXPECT_EQ(wire_weights_in(log), wire_weights_in(shared[0]));
  }
}

TEST(GradientsOnTheWire, OfAnotherTypeOnOneWorkerAreNamed) {
  expect_success("WireWorkers.ThatRoundOtherwiseAreTold", 2);
}

// What follows runs on workers alone.

std::string show_weights(const Strategy& strategy) {
  const Samples samples = make_samples(54);
  Sequential model({Flatten(), Dense({.units = 33, .activation = "relu"}), Dense({.units = 4})});
  model.compile(wire_options(strategy, "bfloat16"));
  model.fit(Dataset::from_tensor_slices({samples.x, samples.y}).batch(13), {.epochs = 3});
  std::string bytes;
  for (const std::vector<float>& weights : weights_of(model)) {
    bytes.append(reinterpret_cast<const char*>(weights.data()), weights.size() * sizeof(float));
  }
  return fmt::format("weights {:08x}", crc32c(bytes));
}

TEST(WireWorkers, GiveTheBitsOfThreads) {
  if (TestWorker::current() == nullptr) GTEST_SKIP() << "runs within GradientsOnTheWire";
  const std::string mine = show_weights(mirrored(2));
  EXPECT_EQ(mine, show_weights(MirroredStrategy({.devices = {"cpu:0", "cpu:1"}})));
  std::printf("%s\n", mine.c_str());
}

TEST(WireWorkers, ThatRoundOtherwiseAreTold) {
  if (TestWorker::current() == nullptr) GTEST_SKIP() << "runs within GradientsOnTheWire";
  const std::string dtype = TestWorker::current()->process() == 0 ? "bfloat16" : "float32";
  Model model = wire_cnn();
  model.compile(wire_options(mirrored(2), dtype));
  try {
    model.fit(wire_data().images);
    FAIL() << "workers that communicate different types trained together";
  } catch (const UsageError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("the same model with the same options"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace lockstep::testing
