#include <gtest/gtest.h>

#include <fstream>

#include "temporary_folder.h"
#include "train/problem.h"

namespace lockstep::testing {
namespace {

Sequential checkpoint_model(std::uint64_t seed = 3) {
  Sequential model = make_dropout_model();
  model.compile(with_adam(seed));
  return model;
}

class ResumeAfter : public ::testing::TestWithParam<std::int64_t> {};

// 100 samples in batches of 16 are 7 steps per epoch, the last with a short batch.
TEST_P(ResumeAfter, ContinuesBitForBitAsIfNeverStopped) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder / "checkpoint.safetensors";
  const Problem data = make_problem(100);
  const Dataset batches = shuffled_batches(data);
  const Dataset validation = Dataset::from_tensor_slices({data.x, data.y}).batch(32);

  Sequential straight = checkpoint_model();
  const History whole = straight.fit(batches, {.epochs = 3, .validation_data = validation});

  Sequential stopped = checkpoint_model();
  stopped.fit(
      batches,
      {.epochs = 3, .validation_data = validation, .callbacks = {save_and_stop(GetParam(), file)}});
  EXPECT_EQ(stopped.step(), GetParam());

  Sequential resumed = checkpoint_model();
  const History rest =
      resumed.fit(batches, {.epochs = 3, .validation_data = validation, .resume = file});
  EXPECT_TRUE(same_weights(straight, resumed));
  EXPECT_EQ(resumed.step(), 21);
  ASSERT_FALSE(rest.epochs.empty());
  for (const EpochLog& epoch : rest.epochs) {
    const Logs& expected = whole.epochs[static_cast<std::size_t>(epoch.epoch)].logs;
    for (const char* name : {"loss", "sparse_categorical_accuracy", "val_loss", "lr"}) {
      EXPECT_EQ(epoch.logs[name], expected[name]) << name << " of epoch " << epoch.epoch;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Steps, ResumeAfter, ::testing::Values(1, 6, 7, 10, 14, 20));

TEST(Checkpoint, OneWrittenAtTheEndOfAnEpochContinuesWithTheNext) {
  const TemporaryFolder folder;
  const Problem data = make_problem(64);
  const Dataset batches = shuffled_batches(data);
  Sequential straight = checkpoint_model();
  straight.fit(batches,
               {.epochs = 3,
                .callbacks = {ModelCheckpoint({.path = folder.path() + "/{epoch}.safetensors"})}});
  Sequential resumed = checkpoint_model();
  const History history = resumed.fit(batches, {.epochs = 3, .resume = folder / "2.safetensors"});
  ASSERT_EQ(history.epochs.size(), 1u);
  EXPECT_EQ(history.epochs[0].epoch, 2);
  EXPECT_TRUE(same_weights(straight, resumed));
}

TEST(Checkpoint, StepsPerEpochResumesInsideThePassThroughTheData) {
  const TemporaryFolder folder;
  const Problem data = make_problem(100);
  const Dataset batches = shuffled_batches(data);
  Sequential straight = checkpoint_model();
  straight.fit(batches,
               {.epochs = 4,
                .steps_per_epoch = 5,
                .callbacks = {ModelCheckpoint({.path = folder.path() + "/{epoch}.safetensors"})}});
  for (const char* name : {"1.safetensors", "2.safetensors", "3.safetensors"}) {
    Sequential resumed = checkpoint_model();
    resumed.fit(batches, {.epochs = 4, .steps_per_epoch = 5, .resume = folder / name});
    EXPECT_TRUE(same_weights(straight, resumed)) << name;
  }
}

TEST(Checkpoint, CallbacksContinueWithTheirState) {
  const TemporaryFolder folder;
  const Problem data = make_problem(64);
  const Dataset batches = shuffled_batches(data);
  // The loss cannot fall by this much, so no epoch counts as an improvement.
  const auto plateau = [] {
    return ReduceLROnPlateau({.monitor = "loss", .factor = 0.5, .patience = 2, .min_delta = 100});
  };
  Sequential straight = checkpoint_model();
  const History whole = straight.fit(
      batches, {.epochs = 6,
                .callbacks = {plateau(),
                              ModelCheckpoint({.path = folder.path() + "/{epoch}.safetensors"})}});
  Sequential resumed = checkpoint_model();
  const History rest = resumed.fit(
      batches, {.epochs = 6,
                .callbacks = {plateau(), ModelCheckpoint({.path = folder.path() + "/again"})},
                .resume = folder / "2.safetensors"});
  const std::vector<double> rates = whole.series("lr");
  EXPECT_EQ(rest.series("lr"), std::vector<double>(rates.begin() + 2, rates.end()));
  EXPECT_LT(rates.back(), rates.front());
}

TEST(Checkpoint, SaveAndLoadKeepWeightsOptimizerAndStep) {
  const TemporaryFolder folder;
  const Problem data = make_problem(64);
  const Dataset batches = Dataset::from_tensor_slices({data.x, data.y}).batch(16);
  Sequential saved = checkpoint_model();
  saved.fit(batches);
  saved.save(folder / "model");
  Sequential loaded = checkpoint_model(/*seed=*/3);
  loaded.build({kFeatures});
  loaded.load(folder / "model");
  EXPECT_TRUE(same_weights(saved, loaded));
  EXPECT_EQ(loaded.step(), 4);
  saved.fit(batches);
  loaded.fit(batches);
  EXPECT_TRUE(same_weights(saved, loaded));
}

TEST(Checkpoint, LoadingOneFromTheMiddleOfAnEpochDoesNotNeedItsMetrics) {
  const TemporaryFolder folder;
  const Problem data = make_problem(64);
  Sequential saved = checkpoint_model();
  saved.fit(shuffled_batches(data), {.callbacks = {save_and_stop(2, folder / "file")}});
  Sequential loaded = make_dropout_model();
  CompileOptions options = with_adam();
  options.metrics = {SparseTopKCategoricalAccuracy({.k = 2})};
  loaded.compile(options);
  loaded.build({kFeatures});
  loaded.load(folder / "file");
  EXPECT_TRUE(same_weights(saved, loaded));
  EXPECT_EQ(loaded.step(), 2);
  const std::string message = message_of<UsageError>(
      [&] { loaded.fit(shuffled_batches(data), {.resume = folder / "file"}); });
  EXPECT_NE(message.find("sparse_top_k"), std::string::npos) << message;
}

TEST(Checkpoint, WeightsLoadIntoAnUncompiledModel) {
  const TemporaryFolder folder;
  const Problem data = make_problem(32);
  Sequential saved = checkpoint_model();
  saved.fit(data.x, data.y);
  saved.save_weights(folder / "weights.safetensors");
  saved.save(folder / "all.safetensors");
  for (const char* name : {"weights.safetensors", "all.safetensors"}) {
    Sequential loaded = make_dropout_model();
    loaded.build({kFeatures});
    loaded.load_weights(folder / name);
    EXPECT_TRUE(loaded.predict(data.x).same_bits(saved.predict(data.x))) << name;
  }
  const TensorFile contents = load_safetensors(folder / "weights.safetensors");
  EXPECT_EQ(contents.tensors.size(), 4u);
  EXPECT_TRUE(contents.tensors.contains("dense/kernel"));
  EXPECT_EQ(contents.tensors.at("dense_1/bias").shape(), Shape{kClasses});
}

TEST(Checkpoint, MissingExtraAndMisshapenTensorsAreNamedAndNothingChanges) {
  const TemporaryFolder folder;
  Sequential model = make_model();
  model.build({kFeatures});
  const std::vector<Tensor> before = model.weights();
  model.save_weights(folder / "good");
  const TensorFile good = load_safetensors(folder / "good");

  const auto refuse = [&](const TensorFile& contents, std::vector<std::string> parts) {
    save_safetensors(folder / "bad", contents);
    const std::string message = message_of<UsageError>([&] { model.load_weights(folder / "bad"); });
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
    const std::vector<Tensor> now = model.weights();
    for (std::size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(now[i].same_bits(before[i]));
  };
  TensorFile missing = good;
  missing.tensors.erase("dense_1/bias");
  refuse(missing, {"dense_1/bias", "(3,)"});
  TensorFile extra = good;
  extra.tensors["other/kernel"] = Tensor(DType::F32, {2, 5});
  refuse(extra, {"other/kernel", "(2, 5)"});
  TensorFile misshapen = good;
  misshapen.tensors["dense/kernel"] = Tensor(DType::F32, {kFeatures, 8});
  refuse(misshapen, {"dense/kernel", "(6, 8)", "(6, 16)"});
  TensorFile mistyped = good;
  mistyped.tensors["dense/bias"] = Tensor(DType::F64, {16});
  refuse(mistyped, {"dense/bias", "f64", "f32"});
}

TEST(Checkpoint, SkipMismatchLoadsTheRest) {
  const TemporaryFolder folder;
  Sequential base = make_model();
  base.build({kFeatures});
  base.save_weights(folder / "base");
  Sequential other({Dense({.units = 16, .activation = "relu"}), Dense({.units = 7})});
  other.compile(with_adam(/*seed=*/99));
  other.build({kFeatures});
  other.load_weights(folder / "base", {.skip_mismatch = true});
  EXPECT_TRUE(other.weights()[0].same_bits(base.weights()[0]));
  EXPECT_EQ(other.weights()[2].shape(), (Shape{16, 7}));
}

TEST(Checkpoint, TruncatedAndForeignFilesAreDataErrorsAndChangeNothing) {
  const TemporaryFolder folder;
  Sequential model = checkpoint_model();
  model.build({kFeatures});
  model.save(folder / "whole");
  const std::vector<Tensor> before = model.weights();
  std::ifstream whole(folder / "whole", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(whole)), {});
  for (const std::size_t kept :
       {std::size_t{0}, std::size_t{5}, bytes.size() / 2, bytes.size() - 1}) {
    std::ofstream(folder / "part", std::ios::binary) << bytes.substr(0, kept);
    EXPECT_THROW(model.load(folder / "part"), DataError) << kept;
    EXPECT_THROW(model.load_weights(folder / "part"), DataError) << kept;
  }
  std::ofstream(folder / "text") << "this is a text, and no checkpoint at all";
  EXPECT_THROW(model.load(folder / "text"), DataError);
  EXPECT_THROW(model.load(folder / "nothing"), DataError);
  // Weights of another program: a safetensors file, but not a checkpoint.
  save_safetensors(folder / "foreign",
                   {.tensors = {{"w", Tensor(DType::F32, {2})}}, .metadata = {}});
  const std::string message = message_of<DataError>([&] { model.load(folder / "foreign"); });
  EXPECT_NE(message.find("load_weights"), std::string::npos) << message;
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(model.weights()[i].same_bits(before[i]));
  }
}

TEST(Checkpoint, ResumingNeedsOneWrittenByFit) {
  const TemporaryFolder folder;
  const Problem data = make_problem(32);
  Sequential model = checkpoint_model();
  model.build({kFeatures});
  model.save(folder / "outside");
  const std::string message = message_of<UsageError>(
      [&] { model.fit(data.x, data.y, {.epochs = 2, .resume = folder / "outside"}); });
  EXPECT_NE(message.find("model.load"), std::string::npos) << message;
}

TEST(Checkpoint, ResumingWithAnotherSeedIsRefusedAndChangesNothing) {
  const TemporaryFolder folder;
  const Problem data = make_problem(32);
  Sequential first = checkpoint_model(/*seed=*/3);
  first.fit(data.x, data.y, {.callbacks = {ModelCheckpoint({.path = (folder / "file").string()})}});
  Sequential second = checkpoint_model(/*seed=*/4);
  second.build({kFeatures});
  const std::vector<Tensor> before = second.weights();
  const std::string message = message_of<UsageError>(
      [&] { second.fit(data.x, data.y, {.epochs = 2, .resume = folder / "file"}); });
  EXPECT_NE(message.find("seed 3"), std::string::npos) << message;
  EXPECT_TRUE(second.weights()[0].same_bits(before[0]));
}

}  // namespace
}  // namespace lockstep::testing
