// Checkpoints of earlier versions of the format.
#include <gtest/gtest.h>

#include <fstream>

#include "temporary_folder.h"
#include "train/problem.h"

namespace lockstep::testing {
namespace {

Element sample_of(const Problem& data, const Element& number) {
  const std::int64_t row = number[0].values<std::int64_t>()[0];
  const auto x = data.x.values<float>().subspan(static_cast<std::size_t>(row * kFeatures),
                                                static_cast<std::size_t>(kFeatures));
  const std::int32_t y = data.y.values<std::int32_t>()[static_cast<std::size_t>(row)];
  return Element(std::vector<Tensor>{Tensor::of<float>(x, {kFeatures}), Tensor::scalar(y)});
}

// Elements that are not rows of a table, so that the position includes the shuffle buffer.
Dataset shuffled_elements(const Problem& data) {
  return Dataset::range(data.x.shape()[0])
      .map([data](const Element& number) { return sample_of(data, number); })
      .shuffle({.buffer = 20, .seed = 5})
      .batch(16);
}

// With a record of 50,000 bytes in each element of the shuffle buffer.
Dataset shuffled_records(const Problem& data) {
  return Dataset::range(data.x.shape()[0])
      .map([data](const Element& number) {
        Element element = sample_of(data, number);
        element.push_back(Tensor(DType::U8, {50000}));
        return element;
      })
      .shuffle({.buffer = 20, .seed = 5})
      .map([](const Element& element) {
        return Element({element[0], element[1]});
      })
      .batch(16);
}

FitOptions three_epochs() {
  return {.epochs = 3,
          .callbacks = {
              EarlyStopping({.monitor = "loss", .patience = 5, .restore_best_weights = true})}};
}

// version1.safetensors was written by the last version of Lockstep with format version 1: this
// model and data, saved after step 10 of 21.
TEST(CheckpointVersion, OneIsStillReadAndTheRunContinues) {
  const Problem data = make_problem(100);
  Sequential straight = make_model();
  straight.compile(with_adam());
  straight.fit(shuffled_elements(data), three_epochs());

  Sequential resumed = make_model();
  resumed.compile(with_adam());
  FitOptions rest = three_epochs();
  rest.resume = LOCKSTEP_SOURCE_DIR "/tests/train/version1.safetensors";
  resumed.fit(shuffled_elements(data), rest);
  EXPECT_EQ(resumed.step(), 21);
  EXPECT_LT(largest_difference(straight, resumed), 1e-4);
}

// In version 1 this header held two digits per byte of the buffer, 2 MB here.
TEST(CheckpointVersion, TwoStoresTheShuffleBufferInTensorsWithASmallHeader) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder / "checkpoint.safetensors";
  const Problem data = make_problem(100);
  Sequential straight = make_model();
  straight.compile(with_adam());
  straight.fit(shuffled_records(data), {.epochs = 2});
  Sequential stopped = make_model();
  stopped.compile(with_adam());
  stopped.fit(shuffled_records(data), {.epochs = 2, .callbacks = {save_and_stop(3, file)}});

  const TensorFile contents = load_safetensors(file);
  EXPECT_EQ(contents.metadata.at("format_version"), "2");
  EXPECT_FALSE(contents.metadata.contains("position"));
  EXPECT_EQ(contents.tensors.at("input/values/u8").shape(), Shape{20 * 50000});
  std::uint64_t header = 0;
  std::ifstream(file, std::ios::binary).read(reinterpret_cast<char*>(&header), sizeof(header));
  EXPECT_LT(header, 4000u);

  Sequential resumed = make_model();
  resumed.compile(with_adam());
  resumed.fit(shuffled_records(data), {.epochs = 2, .resume = file});
  EXPECT_TRUE(same_weights(straight, resumed));
}

TEST(CheckpointVersion, ALaterOneIsADataError) {
  const TemporaryFolder folder;
  Sequential model = make_model();
  model.compile(with_adam());
  model.build({kFeatures});
  model.save(folder / "file");
  TensorFile contents = load_safetensors(folder / "file");
  contents.metadata["format_version"] = "3";
  save_safetensors(folder / "file", contents);
  EXPECT_NE(message_of<DataError>([&] { model.load(folder / "file"); }).find("'3'"),
            std::string::npos);
}

TEST(CheckpointVersion, TooDeeplyNestedCallbacksAreADataError) {
  const TemporaryFolder folder;
  const Problem data = make_problem(32);
  Sequential model = make_model();
  model.compile(with_adam());
  model.fit(data.x, data.y, {.callbacks = {ModelCheckpoint({.path = folder.path() + "/file"})}});
  TensorFile contents = load_safetensors(folder / "file");
  contents.metadata["callbacks"] = std::string(100000, '[') + std::string(100000, ']');
  save_safetensors(folder / "file", contents);
  EXPECT_NE(message_of<DataError>([&] { model.load(folder / "file"); }).find("callbacks"),
            std::string::npos);
}

TEST(CheckpointVersion, ADamagedWeightIsNamedAndNothingIsLoaded) {
  const TemporaryFolder folder;
  Sequential model = make_model();
  model.compile(with_adam());
  model.build({kFeatures});
  const std::vector<Tensor> before = model.weights();
  for (const bool weights_only : {false, true}) {
    const std::filesystem::path file = folder / "file";
    weights_only ? model.save_weights(file) : model.save(file);
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(-1, std::ios::end);
    stream.put('\x55');
    stream.close();
    const std::string message =
        message_of<DataError>([&] { weights_only ? model.load_weights(file) : model.load(file); });
    EXPECT_NE(message.find("tensor \""), std::string::npos) << message;
    EXPECT_NE(message.find("is damaged"), std::string::npos) << message;
  }
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(model.weights()[i].same_bits(before[i]));
  }
}

}  // namespace
}  // namespace lockstep::testing
