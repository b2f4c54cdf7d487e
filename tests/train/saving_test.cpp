// What ModelCheckpoint writes and under which name, and full disks.
#include <gtest/gtest.h>

#include <limits>

#include "file_size_limit.h"
#include "lockstep/profile/trace.h"
#include "temporary_folder.h"
#include "train/problem.h"

namespace lockstep::testing {
namespace {

// Makes a weight infinite or NaN after the last step of an epoch.
CallbackRef spoil_epoch(std::int64_t epoch, float value) {
  return LambdaCallback({.on_epoch_end = [=](Model& model, std::int64_t ended, const Logs&) {
    if (ended != epoch) return;
    std::vector<Tensor> weights = model.weights();
    weights[0] = weights[0].clone();
    weights[0].values<float>()[3] = value;
    model.set_weights(weights);
  }});
}

TEST(Saving, NonFiniteWeightsDoNotReplaceTheLastGoodCheckpoint) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const TemporaryFolder folder;
    const Problem data = make_problem(64);
    Sequential model = make_model();
    model.compile(with_adam());
    const std::string path = folder.path() + "/checkpoint.safetensors";
    model.fit(shuffled_batches(data),
              {.epochs = 2, .callbacks = {ModelCheckpoint({.path = path}), spoil_epoch(1, bad)}});
    EXPECT_EQ(folder.files(), 2u);
    Sequential good = make_model();
    good.compile(with_adam());
    good.build({kFeatures});
    good.load(path);
    EXPECT_EQ(good.step(), 4) << "the checkpoint of the first epoch";
    for (const Tensor& weight : good.weights()) {
      for (const float value : weight.values<float>()) EXPECT_TRUE(std::isfinite(value));
    }
    good.load(folder / "checkpoint.nonfinite.safetensors");
    EXPECT_EQ(good.step(), 8);
  }
}

TEST(Saving, NonFiniteWeightsDoNotReplaceTheLastGoodWeightsFile) {
  const TemporaryFolder folder;
  const Problem data = make_problem(64);
  Sequential model = make_model();
  model.compile(with_adam());
  model.fit(shuffled_batches(data),
            {.epochs = 2,
             .callbacks = {
                 ModelCheckpoint({.path = folder.path() + "/weights", .save_weights_only = true}),
                 spoil_epoch(1, std::numeric_limits<float>::infinity())}});
  EXPECT_EQ(load_safetensors(folder / "weights").metadata.at("step"), "4");
  EXPECT_EQ(load_safetensors(folder / "weights.nonfinite").metadata.at("step"), "8");
}

TEST(Saving, DoubledBracesInAPathAreUnescaped) {
  const TemporaryFolder folder;
  const Problem data = make_problem(32);
  Sequential model = make_model();
  model.compile(with_adam());
  model.fit(shuffled_batches(data),
            {.callbacks = {ModelCheckpoint({.path = folder.path() + "/a{{b}}-{epoch}"})}});
  EXPECT_TRUE(std::filesystem::exists(folder / "a{b}-1"));
}

TEST(Saving, AFullDiskIsADataErrorThatNamesTheFile) {
  const TemporaryFolder folder;
  const Problem data = make_problem(32);
  const auto refusal = [&](const CallbackRef& callback) {
    Sequential model = make_model();
    model.compile(with_adam());
    return message_of<DataError>(
        [&] { model.fit(shuffled_batches(data), {.epochs = 0, .callbacks = {callback}}); });
  };
  EXPECT_NE(refusal(CSVLogger({.path = "/dev/full"})).find("/dev/full"), std::string::npos);
  EXPECT_NE(message_of<DataError>([&] { write_trace(Recorder(), "/dev/full"); }).find("/dev/full"),
            std::string::npos);
  const FileSizeLimit limit(8);
  const std::string message = refusal(TensorBoard({.log_dir = folder / "logs"}));
  EXPECT_NE(message.find((folder / "logs").string()), std::string::npos) << message;
}

}  // namespace
}  // namespace lockstep::testing
