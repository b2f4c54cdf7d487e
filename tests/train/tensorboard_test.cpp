#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>

#include "lockstep/base/crc32c.h"
#include "lockstep/train/event.pb.h"
#include "lockstep/train/event_writer.h"
#include "temporary_folder.h"
#include "train/problem.h"

namespace lockstep::testing {
namespace {

// The events of a file; verifies every checksum.
std::vector<events::Event> read_events(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(stream)), {});
  std::vector<events::Event> list;
  std::size_t at = 0;
  while (at < bytes.size()) {
    std::uint64_t length = 0;
    std::uint32_t length_crc = 0;
    std::uint32_t crc = 0;
    std::memcpy(&length, bytes.data() + at, 8);
    std::memcpy(&length_crc, bytes.data() + at + 8, 4);
    EXPECT_EQ(length_crc, masked_crc32c(std::string_view(bytes).substr(at, 8)));
    const std::string payload = bytes.substr(at + 12, length);
    std::memcpy(&crc, bytes.data() + at + 12 + length, 4);
    EXPECT_EQ(crc, masked_crc32c(payload));
    EXPECT_TRUE(list.emplace_back().ParseFromString(payload));
    at += 16 + length;
  }
  return list;
}

std::filesystem::path only_file(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry);
  EXPECT_EQ(files.size(), 1u);
  EXPECT_NE(files.at(0).string().find("tfevents"), std::string::npos);
  return files.at(0);
}

TEST(TensorBoard, HoldsTheNoiseScaleWithItsLimits) {
  const TemporaryFolder folder;
  const Problem data = make_problem(64);
  Sequential model = make_model();
  model.compile(with_adam());
  const History history = model.fit(data.x, data.y,
                                    {.epochs = 2,
                                     .callbacks = {TensorBoard({.log_dir = folder / "logs"})},
                                     .noise_scale_every = 1,
                                     .batch_size = 8});
  std::map<std::string, float> last;
  for (const events::Event& event : read_events(only_file(folder / "logs/train"))) {
    for (const auto& value : event.summary().value()) last[value.tag()] = value.simple_value();
  }
  ASSERT_TRUE(std::isfinite(history.noise_scale->high));
  EXPECT_FLOAT_EQ(last.at("epoch_noise_scale"), static_cast<float>(history.noise_scale->value));
  EXPECT_FLOAT_EQ(last.at("epoch_noise_scale_low"), static_cast<float>(history.noise_scale->low));
  EXPECT_FLOAT_EQ(last.at("epoch_noise_scale_high"), static_cast<float>(history.noise_scale->high));
}

TEST(TensorBoard, HoldsWhereTheTimeOfEachEpochWentAndTheMemory) {
  const TemporaryFolder folder;
  const Problem data = make_problem(64);
  Sequential model = make_model();
  CompileOptions options = with_adam();
  options.strategy = MirroredStrategy({.devices = {"cpu:0", "cpu:1"}});
  model.compile(options);
  const History history = model.fit(data.x, data.y,
                                    {.epochs = 3,
                                     .callbacks = {TensorBoard({.log_dir = folder / "logs"})},
                                     .batch_size = 8,
                                     .validation_split = 0.25});
  std::map<std::int64_t, std::map<std::string, float>> epochs;
  for (const events::Event& event : read_events(only_file(folder / "logs/train"))) {
    for (const auto& value : event.summary().value()) {
      epochs[event.step()][value.tag()] = value.simple_value();
    }
  }
  ASSERT_EQ(epochs.size(), 3u);
  for (const auto& [epoch, tags] : epochs) {
    SCOPED_TRACE(epoch);
    double parts = 0;
    for (const auto& [name, share] : parts_of({})) {
      const double part = tags.at(std::string("epoch_time/") + name);
      EXPECT_GE(part, -1e-3) << name;
      parts += part;
    }
    EXPECT_NEAR(parts, 1, 1e-4);
    EXPECT_NEAR(tags.at("epoch_speed_up"), 2 * tags.at("epoch_time/compute"), 1e-5);
    EXPECT_EQ(tags.at("epoch_replicas"), 2);
    EXPECT_EQ(tags.at("epoch_memory_bytes"), static_cast<float>(history.peak_bytes));
    EXPECT_GT(tags.at("epoch_samples_per_s"), 0);
  }
  // Planning is over after the first epoch.
  EXPECT_GT(epochs[0].at("epoch_time/start"), epochs[2].at("epoch_time/start"));
}

TEST(TensorBoard, EventFilesHoldTheLogsOfEveryEpoch) {
  const TemporaryFolder folder;
  const Problem data = make_problem(64);
  Sequential model = make_model();
  model.compile(with_adam());
  const History history =
      model.fit(data.x, data.y,
                {.epochs = 3,
                 .callbacks = {TensorBoard({.log_dir = folder / "logs", .update_steps = 1})},
                 .validation_split = 0.25});

  const std::vector<events::Event> train = read_events(only_file(folder / "logs/train"));
  ASSERT_FALSE(train.empty());
  EXPECT_EQ(train[0].file_version(), "brain.Event:2");
  std::vector<double> losses;
  int batches = 0;
  for (const events::Event& event : train) {
    for (const events::Summary::Value& value : event.summary().value()) {
      if (value.tag() == "batch_loss") ++batches;
      if (value.tag() != "epoch_loss") continue;
      EXPECT_EQ(event.step(), static_cast<std::int64_t>(losses.size()));
      EXPECT_GT(event.wall_time(), 1.6e9);
      losses.push_back(value.simple_value());
    }
  }
  EXPECT_EQ(batches, 6);
  ASSERT_EQ(losses.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_FLOAT_EQ(losses[i], history.series("loss")[i]);

  int validation = 0;
  for (const events::Event& event : read_events(only_file(folder / "logs/validation"))) {
    for (const auto& value : event.summary().value()) {
      validation += value.tag() == "epoch_sparse_categorical_accuracy";
    }
  }
  EXPECT_EQ(validation, 3);
}

TEST(TensorBoard, AFolderThatCannotBeCreatedIsADataError) {
  EXPECT_THROW(EventWriter("/proc/no-such-folder"), DataError);
}

}  // namespace
}  // namespace lockstep::testing
