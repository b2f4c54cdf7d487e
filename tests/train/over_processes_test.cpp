// The tests of replicas once more, with the replicas in two processes that meet in shared memory:
// every worker runs the same tests, and all expectations hold on each of them.
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <vector>

#include "train/replica_runs.h"

namespace lockstep::testing {
namespace {

std::string contents_of(int file) {
  std::string text;
  std::array<char, 4096> part;
  lseek(file, 0, SEEK_SET);
  for (ssize_t got = 0; (got = read(file, part.data(), part.size())) > 0;) {
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  return text;
}

// Runs the tests of this program that a filter names in as many workers as are asked for.
// `second_isa`: oneDNN's instruction set on the second worker; empty: what its processor has.
void expect_success(const std::string& filter, int workers, const std::string& second_isa = "") {
  std::string program = "train_test";
  std::string argument = "--gtest_filter=" + filter;
  const int fd = SharedHost::create(workers, OnExec::Keep);
  std::vector<pid_t> children;
  std::vector<int> logs;
  unsetenv("GTEST_TOTAL_SHARDS");  // a worker runs all of them
  unsetenv("GTEST_SHARD_INDEX");
  for (int worker = 0; worker < workers; ++worker) {
    if (worker == 1 && !second_isa.empty()) setenv("ONEDNN_MAX_CPU_ISA", second_isa.c_str(), 1);
    setenv(kWorkerVariable, fmt::format("{} {} {}", worker, workers, fd).c_str(), 1);
    logs.push_back(memfd_create("log", MFD_CLOEXEC));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, logs.back(), 1);
    posix_spawn_file_actions_adddup2(&actions, logs.back(), 2);
    char* const arguments[] = {program.data(), argument.data(), nullptr};
    pid_t child = 0;
    ASSERT_EQ(posix_spawn(&child, "/proc/self/exe", &actions, nullptr, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    children.push_back(child);
  }
  unsetenv(kWorkerVariable);
  unsetenv("ONEDNN_MAX_CPU_ISA");
  close(fd);
  for (std::size_t worker = 0; worker < children.size(); ++worker) {
    int status = 0;
    waitpid(children[worker], &status, 0);
    const std::string log = contents_of(logs[worker]);
    close(logs[worker]);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "worker " << worker << ":\n"
                                                               << log;
    EXPECT_EQ(log.find("0 tests from"), std::string::npos) << log;
  }
}

TEST(OverProcesses, TrainingOnReplicasGivesWhatItGivesInOne) {
  expect_success(
      "Mirrored.*"
      // What is asked of the devices and tracks of one process.
      ":-Mirrored.EveryReplicasTimeIsDividedWholly:Mirrored.DevicesThatAreNotThereAreNamed"
      ":Mirrored.ReplicasGoOnBehindAnErrorOfOne",
      2);
}

class OverProcessesOf : public ::testing::TestWithParam<int> {};

TEST_P(OverProcessesOf, SoManyReplicasGiveTheLossesOfOne) {
  expect_success(fmt::format("Mirrored/EveryNumberOfReplicas.*/{}", GetParam() - 2), 2);
}

INSTANTIATE_TEST_SUITE_P(, OverProcessesOf, ::testing::Values(2, 3, 4));

TEST(OverProcesses, LoopsOfTheUsersOwnGiveWhatTheyGiveInOne) {
  expect_success(
      "CustomLoop.GivesTheLossesOfOneReplicaOnUnevenBatches:CustomLoop.TrainsTheModelThatItCalls"
      ":CustomLoop.AverageLossesOfTheReplicasAddUpToTheMean",
      2);
}

// On the second worker oneDNN wants weights in other blocks than on the first: all agree on layouts
// that both can use, and replicas are compared bit by bit after every step.
TEST(OverProcesses, WorkersWithOtherInstructionSetsAgree) {
  const bool wide = __builtin_cpu_supports("avx512f");
  expect_success(
      "Mirrored/EveryNumberOfReplicas.GivesTheLosses*/"
      "0:Mirrored.ClipsByTheNormOfAllReplicasGradients"
      ":Workers.WithLambStayEqual",
      2, wide ? "AVX2" : "SSE41");
}

TEST(OverProcesses, WorkersThatCannotAgreeAreTold) {
  expect_success("Workers.ThatTrainDifferentModelsAreToldWhichCollectiveDiffers", 2);
}

// What follows runs on workers alone.

TEST(Workers, WithLambStayEqual) {
  if (TestWorker::current() == nullptr) GTEST_SKIP() << "runs within OverProcesses";
  const Samples samples = make_samples(40);
  Sequential model({Conv2D({.filters = 16, .kernel_size = 3}),
                    BatchNormalization({.synchronized = true}), Activation("relu"),
                    Conv2D({.filters = 16, .kernel_size = 3}), BatchNormalization(),
                    MaxPooling2D({.pool_size = 2}), Flatten(), Dense({.units = 4})});
  model.compile({.strategy = mirrored(2),
                 .optimizer = LAMB({.learning_rate = 0.01, .global_clipnorm = 0.5}),
                 .loss = SparseCategoricalCrossentropy({.from_logits = true})});
  const History history =
      model.fit(Dataset::from_tensor_slices({samples.x, samples.y}).batch(16), {.epochs = 4});
  EXPECT_LT(history.series("loss").back(), history.series("loss").front());
}

TEST(Workers, ThatTrainDifferentModelsAreToldWhichCollectiveDiffers) {
  if (TestWorker::current() == nullptr) GTEST_SKIP() << "runs within OverProcesses";
  const Samples samples = make_samples(16);
  const std::int64_t units = 8 + TestWorker::current()->process();
  Sequential model({Flatten(), Dense({.units = units, .name = "hidden"}), Dense({.units = 4})});
  model.compile({.strategy = mirrored(2),
                 .optimizer = SGD(),
                 .loss = SparseCategoricalCrossentropy({.from_logits = true})});
  try {
    model.fit(Dataset::from_tensor_slices({samples.x, samples.y}).batch(16));
    FAIL() << "workers with different models trained together";
  } catch (const UsageError& error) {
    const std::string message = error.what();
    for (const char* part : {"replica 0 (cpu:0 of worker 0)", "replica 1 (cpu:1 of worker 1)",
                             "all_reduce", "hidden/kernel"}) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
