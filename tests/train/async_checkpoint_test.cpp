// Checkpoints that are written while training goes on: what they hold, how errors and kills end,
// and which files are kept.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <future>
#include <iterator>

#include "file_size_limit.h"
#include "lockstep/train/model_impl.h"
#include "temporary_folder.h"
#include "train/problem.h"
#include "train/worker_processes.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

Sequential compiled_model() {
  Sequential model = make_model();
  model.compile(with_adam());
  model.build({kFeatures});
  return model;
}

std::string bytes_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  EXPECT_TRUE(stream.good()) << file;
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// At a step, counted from the beginning of training.
CallbackRef at_step(std::int64_t step, std::function<void(Model&)> f) {
  return LambdaCallback({.on_batch_end = [=](Model& model, std::int64_t, const BatchLogs&) {
    if (model.step() == step) f(model);
  }});
}

TEST(AsynchronousCheckpoint, TrainingGoesOnWhileItIsWrittenAndItIsOfItsStep) {
  const TemporaryFolder folder;
  const Problem data = make_problem(128);  // 8 steps
  const auto train = [&](const std::string& name, bool asynchronous,
                         const std::vector<CallbackRef>& more, Sequential& model) {
    std::vector<CallbackRef> callbacks = more;
    callbacks.push_back(ModelCheckpoint({.path = folder.path() + "/" + name + "-{step}",
                                         .every_steps = 3,
                                         .asynchronous = asynchronous}));
    model.fit(shuffled_batches(data), {.epochs = 1, .callbacks = callbacks});
  };
  Sequential model = compiled_model();
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  impl_of(model).on_write_stage = [=](std::string_view) { released.wait(); };
  int passed = 0;  // steps after the snapshot, while the writer is blocked
  const auto look = [&](Model&) {
    EXPECT_FALSE(fs::exists(folder / "async-3"));
    ++passed;
  };
  // The next save is at step 6 and waits for the one in flight.
  train("async", true,
        {at_step(4, look), at_step(5, look), at_step(5, [&](Model&) { release.set_value(); })},
        model);
  EXPECT_EQ(passed, 2);
  Sequential other = compiled_model();
  train("sync", false, {}, other);
  EXPECT_TRUE(same_weights(model, other));
  for (const char* step : {"3", "6", "8"}) {
    EXPECT_EQ(bytes_of(folder / ("async-" + std::string(step))),
              bytes_of(folder / ("sync-" + std::string(step))))
        << step;
  }
  EXPECT_EQ(folder.files(), 6u);
}

TEST(AsynchronousCheckpoint, IsOnDiskWhenFitReturnsOrThrows) {
  const TemporaryFolder folder;
  const Problem data = make_problem(64);
  for (const bool throws : {false, true}) {
    Sequential model = compiled_model();
    std::promise<void> begun;
    impl_of(model).on_write_stage = [&](std::string_view stage) {
      if (stage == "write") begun.set_value();
    };
    const std::string path = folder.path() + (throws ? "/thrown" : "/returned");
    const auto stop = [&](Model& stopped) {
      begun.get_future().wait();
      if (throws) throw std::runtime_error("the user's own");
      stopped.stop_training();
    };
    const FitOptions options{.epochs = 9,
                             .callbacks = {ModelCheckpoint({.path = path, .every_steps = 1}),
                                           // Before the checkpoint of this step.
                                           at_step(2, stop)}};
    if (throws) {
      EXPECT_THROW(model.fit(shuffled_batches(data), options), std::runtime_error);
    } else {
      impl_of(model).on_write_stage = {};
      begun.set_value();
      model.fit(shuffled_batches(data), options);
    }
    EXPECT_EQ(load_safetensors(path).metadata.at("step"), throws ? "1" : "2");
  }
  EXPECT_EQ(folder.files(), 2u) << "no temporary files";
}

TEST(AsynchronousCheckpoint, AFullDiskEndsTrainingWithASentenceAndTheOldOneStays) {
  const TemporaryFolder folder;
  const Problem data = make_problem(64);
  const std::string path = folder.path() + "/checkpoint.safetensors";
  Sequential model = compiled_model();
  model.fit(shuffled_batches(data), {.epochs = 1, .callbacks = {ModelCheckpoint({.path = path})}});
  const std::string before = bytes_of(path);
  std::int64_t steps = 0;
  const auto count = [&](Model&, std::int64_t, const BatchLogs&) { ++steps; };
  {
    const FileSizeLimit limit(512);
    const std::string message = message_of<DataError>([&] {
      model.fit(shuffled_batches(data),
                {.epochs = 50,
                 .callbacks = {ModelCheckpoint({.path = path, .every_steps = 1}),
                               LambdaCallback({.on_batch_end = count})}});
    });
    EXPECT_EQ(message, path + ": cannot be written: File too large");
  }
  EXPECT_LE(steps, 2) << "the error comes with the next save at the latest";
  EXPECT_EQ(bytes_of(path), before);
  EXPECT_EQ(folder.files(), 1u) << "no temporary files";
  // It can go on when there is room.
  model.fit(shuffled_batches(data), {.epochs = 1, .callbacks = {ModelCheckpoint({.path = path})}});
  EXPECT_NE(bytes_of(path), before);
}

TEST(AsynchronousCheckpoint, AnErrorOfTheLastWriteIsThrownByFit) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "checkpoint");
  Sequential model = compiled_model();
  const Problem data = make_problem(32);
  const std::string message = message_of<DataError>([&] {
    model.fit(shuffled_batches(data),
              {.callbacks = {ModelCheckpoint({.path = folder.path() + "/checkpoint"})}});
  });
  EXPECT_NE(message.find("checkpoint: cannot be replaced"), std::string::npos) << message;
  EXPECT_EQ(folder.files(), 1u);
}

// What a child that is killed runs: it trains with a checkpoint after every step, and dies in the
// stage that it is told, when step 4 is saved.
constexpr const char* kKillVariable = "LOCKSTEP_TEST_KILL";

CallbackRef every_step(const fs::path& folder) {
  return ModelCheckpoint({.path = (folder / "checkpoint.safetensors").string(), .every_steps = 1});
}

TEST(KilledWriter, TrainsUntilItIsKilled) {
  const char* const told = std::getenv(kKillVariable);
  if (told == nullptr) GTEST_SKIP() << "runs within another test";
  std::string stage;
  fs::path folder;
  std::istringstream(told) >> stage >> folder;
  Sequential model = compiled_model();
  int writes = 0;
  impl_of(model).on_write_stage = [&](std::string_view reached) {
    if (reached == "write") ++writes;
    if (writes == 4 && reached == stage) raise(SIGKILL);
    if (writes == 4 && stage == "writing" && reached == "commit") {
      // Killed by its parent, when that sees the temporary file.
      std::ofstream(folder / "ready") << getpid();
    }
  };
  model.fit(shuffled_batches(make_problem(256)),
            {.epochs = 1000, .callbacks = {every_step(folder)}});
}

TEST(KilledWriter, LeavesTheCheckpointBeforeAndTheRunEndsAsIfNothingHadHappened) {
  const Problem data = make_problem(256);
  for (const std::string stage : {"write", "commit", "writing"}) {
    const TemporaryFolder folder;
    setenv(kKillVariable, (stage + " " + folder.path()).c_str(), 1);
    const int log = memfd_create("log", MFD_CLOEXEC);
    unsetenv("GTEST_TOTAL_SHARDS");
    unsetenv("GTEST_SHARD_INDEX");
    const pid_t child = start({}, "KilledWriter.TrainsUntilItIsKilled", log);
    unsetenv(kKillVariable);
    if (stage == "writing") {
      while (!fs::exists(folder / "ready")) {
        ASSERT_EQ(waitpid(child, nullptr, WNOHANG), 0) << contents_of(log);
        std::this_thread::yield();
      }
      kill(child, SIGKILL);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << contents_of(log);
    close(log);
    fs::remove(folder / "ready");
    const fs::path file = folder / "checkpoint.safetensors";
    const std::int64_t step = std::stoll(load_safetensors(file).metadata.at("step"));
    EXPECT_GE(step, 3);
    if (stage != "writing") {
      EXPECT_EQ(step, 3);
    }
    const std::int64_t epochs = step / 16 + 1;
    Sequential resumed = compiled_model();
    resumed.fit(shuffled_batches(data),
                {.epochs = epochs, .callbacks = {every_step(folder.path())}, .resume = file});
    Sequential undisturbed = compiled_model();
    undisturbed.fit(shuffled_batches(data), {.epochs = epochs});
    EXPECT_TRUE(same_weights(undisturbed, resumed)) << stage;
    EXPECT_EQ(folder.files(), 1u) << "what the killed writer left is removed";
  }
}

std::vector<std::string> names_in(const TemporaryFolder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

using Names = std::vector<std::string>;

TEST(Keep, TheNewestFilesStayAndWhatOthersWroteIsNeverRemoved) {
  const TemporaryFolder folder;
  const Problem data = make_problem(64);  // 4 steps
  std::ofstream(folder / "at-2.safetensors") << "not ours";
  const auto callback = [&] {
    return ModelCheckpoint({.path = folder.path() + "/at-{step}.safetensors",
                            .every_steps = 3,
                            .keep = 2,
                            .latest = folder.path() + "/latest.safetensors"});
  };
  Sequential model = compiled_model();
  model.fit(shuffled_batches(data), {.epochs = 1, .callbacks = {callback()}});
  EXPECT_EQ(names_in(folder), Names({"at-2.safetensors", "at-3.safetensors", "at-4.safetensors",
                                     "latest.safetensors"}));
  // The list is in the checkpoint, so that the resumed run removes at-3 and at-4.
  Sequential resumed = compiled_model();
  resumed.fit(shuffled_batches(data),
              {.epochs = 2, .callbacks = {callback()}, .resume = folder / "latest.safetensors"});
  EXPECT_EQ(names_in(folder), Names({"at-2.safetensors", "at-6.safetensors", "at-8.safetensors",
                                     "latest.safetensors"}));
  EXPECT_EQ(bytes_of(folder / "latest.safetensors"), bytes_of(folder / "at-8.safetensors"));
}

TEST(Keep, AMovedFolderIsNoObstacle) {
  const TemporaryFolder folder;
  const Problem data = make_problem(32);  // 2 steps
  const auto in = [&](const char* name) {
    return ModelCheckpoint(
        {.path = (folder / name).string() + "/at-{step}.safetensors", .keep = 1});
  };
  Sequential model = compiled_model();
  model.fit(shuffled_batches(data), {.epochs = 1, .callbacks = {in("before")}});
  fs::rename(folder / "before", folder / "after");
  Sequential resumed = compiled_model();
  resumed.fit(
      shuffled_batches(data),
      {.epochs = 2, .callbacks = {in("after")}, .resume = folder / "after" / "at-2.safetensors"});
  EXPECT_FALSE(fs::exists(folder / "after" / "at-2.safetensors"));
  EXPECT_TRUE(fs::exists(folder / "after" / "at-4.safetensors"));
}

TEST(Keep, TheBestStaysBesidesTheNewest) {
  const TemporaryFolder folder;
  const Problem data = make_problem(32);
  // Epochs get worse: the learning rate is negative after the first one.
  Sequential model = compiled_model();
  const auto rate = [](std::int64_t epoch, double) { return epoch == 0 ? 0.01 : -0.01; };
  const History history =
      model.fit(shuffled_batches(data),
                {.epochs = 5,
                 .callbacks = {LearningRateScheduler(rate),
                               ModelCheckpoint({.path = folder.path() + "/{epoch}.safetensors",
                                                .monitor = "loss",
                                                .keep = 1,
                                                .keep_best = true})}});
  const std::vector<double> losses = history.series("loss");
  const auto best = std::ranges::min_element(losses) - losses.begin();
  ASSERT_LT(best, 4) << "the problem of this test";
  EXPECT_EQ(names_in(folder), Names({std::to_string(best + 1) + ".safetensors", "5.safetensors"}));
}

TEST(Keep, AStateThatIsNotFiniteRemovesNothing) {
  const TemporaryFolder folder;
  const Problem data = make_problem(32);
  Sequential model = compiled_model();
  const auto spoil = [](Model& spoilt, std::int64_t epoch, const Logs&) {
    if (epoch != 1) return;
    std::vector<Tensor> weights = spoilt.weights();
    weights[0] = weights[0].clone();
    weights[0].values<float>()[0] = std::numeric_limits<float>::infinity();
    spoilt.set_weights(weights);
  };
  model.fit(shuffled_batches(data),
            {.epochs = 2,
             .callbacks = {
                 LambdaCallback({.on_epoch_end = spoil}),
                 ModelCheckpoint({.path = folder.path() + "/{epoch}.safetensors", .keep = 1})}});
  EXPECT_EQ(names_in(folder), Names({"1.safetensors", "2.nonfinite.safetensors"}));
}

TEST(Keep, ContradictingOptionsAreRejected) {
  EXPECT_THROW(ModelCheckpoint({.path = "a", .keep = -1}), UsageError);
  EXPECT_THROW(ModelCheckpoint({.path = "a", .keep_best = true}), UsageError);
}

}  // namespace
}  // namespace lockstep::testing
