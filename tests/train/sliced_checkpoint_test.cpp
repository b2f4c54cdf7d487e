// Checkpoints that all workers write, each a part: read on any number of workers, damage is named,
// and an error of one worker leaves the checkpoint before.
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "file_size_limit.h"
#include "lockstep/comm/gloo/gloo_wire.h"
#include "lockstep/tensor/sliced_file.h"
#include "lockstep/train/model_impl.h"
#include "temporary_folder.h"
#include "train/problem.h"
#include "train/replica_runs.h"
#include "train/worker_processes.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

// Tells workers where to write.
constexpr const char* kFolderVariable = "LOCKSTEP_TEST_FOLDER";

void run_workers(const std::string& filter, int workers, const TemporaryFolder& folder,
                 Over over = Over::SharedMemory) {
  setenv(kFolderVariable, folder.path().c_str(), 1);
  expect_success(filter, workers, {}, over);
  unsetenv(kFolderVariable);
}

fs::path folder_of_test() {
  return std::getenv(kFolderVariable);
}

Sequential model_on(const Strategy& strategy) {
  Sequential model = make_model();
  CompileOptions options = with_adam();
  options.strategy = strategy;
  model.compile(options);
  model.build({kFeatures});
  return model;
}

Dataset batches() {
  return shuffled_batches(make_problem(96), 12);  // 8 steps
}

bool same_tensors(const TensorFile& a, const TensorFile& b) {
  if (a.tensors.size() != b.tensors.size()) return false;
  for (const auto& [name, tensor] : a.tensors) {
    const auto found = b.tensors.find(name);
    if (found == b.tensors.end() || !tensor.same_bits(found->second)) return false;
  }
  return true;
}

// Writes slices after every step while training goes on, and one file after the fifth step.
TEST(WorkersOfSlices, Save) {
  if (TestWorker::current() == nullptr) GTEST_SKIP() << "runs within SlicedCheckpoint";
  const fs::path folder = folder_of_test();
  Sequential model = model_on(mirrored(6));
  const auto save_whole = [&](Model& saved, std::int64_t, const BatchLogs&) {
    if (saved.step() == 5) saved.save(folder / "whole.safetensors");
  };
  model.fit(batches(),
            {.epochs = 1,
             .callbacks = {LambdaCallback({.on_batch_end = save_whole}),
                           ModelCheckpoint({.path = (folder / "at-{step}.safetensors").string(),
                                            .every_steps = 1,
                                            .writers = Writers::All,
                                            .keep = 4}),
                           ModelCheckpoint({.path = (folder / "same.safetensors").string(),
                                            .every_steps = 1,
                                            .writers = Writers::All})}});
}

// Loads and resumes from what `Save` has written, on the workers that there are.
TEST(WorkersOfSlices, GoOn) {
  if (TestWorker::current() == nullptr) GTEST_SKIP() << "runs within SlicedCheckpoint";
  const fs::path folder = folder_of_test();
  std::vector<Sequential> models;
  for (const char* name : {"whole.safetensors", "at-5.safetensors"}) {
    models.push_back(model_on(mirrored(6)));
    const CallbackRef saves = ModelCheckpoint({.path = (folder / "on-{step}").string(), .keep = 1});
    models.back().fit(batches(), {.epochs = 1, .callbacks = {saves}, .resume = folder / name});
    EXPECT_EQ(models.back().step(), 8);
  }
  EXPECT_TRUE(same_weights(models[0], models[1]));
}

void expect_read_anywhere(Over over) {
  const TemporaryFolder folder;
  run_workers("WorkersOfSlices.Save", 2, folder, over);
  const TensorFile whole = load_tensors(folder / "whole.safetensors");
  const TensorFile sliced = load_tensors(folder / "at-5.safetensors");
  EXPECT_TRUE(same_tensors(whole, sliced));
  EXPECT_EQ(sliced.metadata.at("step"), "5");
  EXPECT_EQ(sliced.metadata.at("workers"), "2");
  EXPECT_EQ(sliced.metadata.at("generation"), "1");
  EXPECT_EQ(load_safetensors(folder / "same.safetensors").metadata.at("step"), "8");
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    names.insert(entry.path().filename().string());
  }
  // Of every checkpoint an index and two files.
  EXPECT_EQ(names.size(), 1u + 4 * 3 + 3) << ::testing::PrintToString(names);
  EXPECT_TRUE(names.contains("at-5.1.1-of-2.safetensors")) << ::testing::PrintToString(names);

  Sequential alone = model_on(OneDeviceStrategy());
  alone.load(folder / "at-5.safetensors");
  Sequential other = model_on(OneDeviceStrategy());
  other.load(folder / "whole.safetensors");
  EXPECT_TRUE(same_weights(alone, other));
  EXPECT_EQ(alone.step(), 5);
  run_workers("WorkersOfSlices.GoOn", 3, folder, over);
}

TEST(SlicedCheckpoint, OfTwoWorkersIsReadOnOneAndOnThree) {
  expect_read_anywhere(Over::SharedMemory);
}

TEST(SlicedCheckpoint, OfTwoWorkersIsReadOnOneAndOnThreeOverGloo) {
  if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo";
  expect_read_anywhere(Over::Gloo);
}

TEST(SlicedCheckpoint, DamagedAndMissingSlicesAreNamedAndChangeNothing) {
  const TemporaryFolder folder;
  run_workers("WorkersOfSlices.Save", 2, folder);
  Sequential model = model_on(OneDeviceStrategy());
  const std::vector<Tensor> before = model.weights();
  const auto refusal = [&] {
    return message_of<DataError>([&] { model.load(folder / "at-7.safetensors"); });
  };
  const fs::path slices = folder / "at-7.1.1-of-2.safetensors";
  {
    std::fstream file(slices, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-3, std::ios::end);
    const char byte = static_cast<char>(file.get() ^ 4);
    file.seekp(-3, std::ios::end);
    file.put(byte);
  }
  EXPECT_NE(refusal().find(slices.string()), std::string::npos) << refusal();
  fs::resize_file(slices, fs::file_size(slices) - 1);
  EXPECT_NE(refusal().find(slices.string() + ": it has"), std::string::npos) << refusal();
  fs::remove(slices);
  EXPECT_NE(refusal().find(slices.string() + ", which is missing"), std::string::npos) << refusal();
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(before[i].same_bits(model.weights()[i]));
  }
}

// The second worker's disk is full when the checkpoint of step 3 is written.
TEST(WorkersOfSlices, SaveUntilADiskIsFull) {
  if (TestWorker::current() == nullptr) GTEST_SKIP() << "runs within SlicedCheckpoint";
  const fs::path folder = folder_of_test();
  Sequential model = model_on(mirrored(2));
  std::optional<FileSizeLimit> limit;
  int writes = 0;
  impl_of(model).on_write_stage = [&](std::string_view stage) {
    if (stage != "write" || ++writes != 3) return;
    if (TestWorker::current()->process() == 1) limit.emplace(64);
  };
  const std::string message = message_of<DataError>([&] {
    model.fit(batches(),
              {.epochs = 1,
               .callbacks = {ModelCheckpoint({.path = (folder / "same.safetensors").string(),
                                              .every_steps = 1,
                                              .writers = Writers::All})}});
  });
  limit.reset();
  EXPECT_EQ(message, fmt::format("[worker 1] {}: cannot be written: File too large",
                                 (folder / "same.3.1-of-2.safetensors").string()));
}

TEST(SlicedCheckpoint, AFullDiskOfOneWorkerIsToldToAllAndTheOneBeforeStays) {
  const TemporaryFolder folder;
  run_workers("WorkersOfSlices.SaveUntilADiskIsFull", 2, folder);
  EXPECT_EQ(load_tensors(folder / "same.safetensors").metadata.at("step"), "2");
  EXPECT_EQ(folder.files(), 3u) << "the index and its two files of slices";
}

// The second worker is killed after it has written its slices of step 3.
TEST(WorkersOfSlices, SaveUntilOneIsKilled) {
  if (TestWorker::current() == nullptr) GTEST_SKIP() << "runs within SlicedCheckpoint";
  const fs::path folder = folder_of_test();
  Sequential model = model_on(mirrored(2));
  int written = 0;
  impl_of(model).on_write_stage = [&](std::string_view stage) {
    if (stage == "slices" && ++written == 3 && TestWorker::current()->process() == 1) {
      std::_Exit(0);
    }
  };
  const auto train = [&] {
    model.fit(batches(),
              {.epochs = 1,
               .callbacks = {ModelCheckpoint({.path = (folder / "same.safetensors").string(),
                                              .every_steps = 1,
                                              .writers = Writers::All})}});
  };
  EXPECT_THROW(train(), CommError);
}

TEST(SlicedCheckpoint, AWorkerKilledWhileWritingLeavesTheOneBefore) {
  const TemporaryFolder folder;
  setenv(kFolderVariable, folder.path().c_str(), 1);
  expect_success("WorkersOfSlices.SaveUntilOneIsKilled", 2, {}, Over::Gloo);
  unsetenv(kFolderVariable);
  EXPECT_EQ(load_tensors(folder / "same.safetensors").metadata.at("step"), "2");
}

TEST(SlicedCheckpoint, EveryRowHasOneWriterAndPartsAreEven) {
  NamedVariables variables;
  const auto add = [&](const char* name, Shape shape) {
    auto variable = std::make_shared<Variable>();
    variable->name = name;
    variable->dtype = DType::F32;
    variable->shape = std::move(shape);
    variables.emplace_back(name, variable);
  };
  add("large", {1000, 3});
  add("scalar", {});
  add("none", {0, 4});
  add("small", {5});
  for (const int writers : {1, 2, 3, 7, 64}) {
    std::vector<std::int64_t> next(variables.size(), 0);
    for (int w = 0; w < writers; ++w) {
      const std::vector<RowRange> rows = rows_of_writer(variables, w, writers);
      std::int64_t bytes = 0;
      for (std::size_t i = 0; i < variables.size(); ++i) {
        if (rows[i].count == 0) continue;
        EXPECT_EQ(rows[i].begin, next[i]);
        next[i] += rows[i].count;
        bytes += rows[i].count * (i == 0 ? 12 : 4);
      }
      EXPECT_NEAR(static_cast<double>(bytes), 12020.0 / writers, 12.0) << w << " of " << writers;
    }
    EXPECT_EQ(next, (std::vector<std::int64_t>{1000, 0, 0, 5}));
  }
}

}  // namespace
}  // namespace lockstep::testing
