// Which devices the workers of a job can train on together, and how they divide GPUs, for
// inventories that are made up.
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/runtime/job_devices.h"
#include "lockstep/train/worker_gpus.h"
#include "train/problem.h"

namespace lockstep::testing {
namespace {

using Devices = std::vector<std::vector<JobDevice>>;
using Seen = std::vector<std::vector<std::string>>;

std::string refusal(const Devices& devices, bool share_gpus = false) {
  return message_of<UsageError>([&] { check_job_devices(devices, share_gpus); });
}

void expect_parts(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(JobDevices, AreReadAsTheyWereTold) {
  const auto devices = parse_job_devices("cpu:0\t\ncuda:1\tGPU-b\n");
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[0].name, "cpu:0");
  EXPECT_EQ(devices[0].gpu, "");
  EXPECT_EQ(devices[1].name, "cuda:1");
  EXPECT_EQ(devices[1].gpu, "GPU-b");
  EXPECT_THROW(parse_job_devices("cpu:0"), InternalError);
}

TEST(JobDevices, OfOneKindThatNobodySharesAreFine) {
  EXPECT_EQ(refusal({{{"cpu:0"}}, {{"cpu:0"}, {"cpu:1"}}}), "no exception");
  EXPECT_EQ(refusal({{{"cuda:0", "GPU-a"}, {"cuda:1", "GPU-b"}}, {{"cuda:0", "GPU-c"}}}),
            "no exception");
}

TEST(JobDevices, OfTwoKindsAreRefusedWithBoth) {
  expect_parts(refusal({{{"cuda:0", "GPU-a"}}, {{"cuda:1", "GPU-b"}}, {{"cpu:0"}}}),
               {"worker 0 has cuda:0", "worker 2 has cpu:0"});
  expect_parts(refusal({{{"cpu:0"}}, {{"cuda:1", "GPU-b"}}}, true),
               {"worker 0 has cpu:0", "worker 1 has cuda:1"});
}

// Whatever each of them calls it, and whichever host it says it is on.
TEST(JobDevices, OneGpuInTwoWorkersIsRefusedUnlessTheyMayShareIt) {
  const Devices devices = {{{"cuda:0", "GPU-a"}, {"cuda:1", "GPU-b"}}, {{"cuda:0", "GPU-b"}}};
  expect_parts(refusal(devices),
               {"cuda:1 of worker 0", "cuda:0 of worker 1", "GPU-b", "CUDA_VISIBLE_DEVICES"});
  EXPECT_EQ(refusal(devices, true), "no exception");
  EXPECT_EQ(refusal({{{"cuda:0", ""}}, {{"cuda:0", ""}}}), "no exception");  // unknown
}

TEST(JobDevices, TwoReplicasOfAWorkerOnOneGpuAreRefusedAnyway) {
  const Devices devices = {{{"cuda:0", "GPU-a"}}, {{"cuda:1/0", "GPU-b"}, {"cuda:1/1", "GPU-b"}}};
  expect_parts(refusal(devices, true), {"cuda:1/0 and cuda:1/1 of worker 1", "GPU-b"});
}

TEST(WorkerGpus, ThatSeveralSeeAreDivided) {
  const std::vector<std::string> host = {"a", "b", "c", "d", "e"};
  const Seen seen = {host, host, {"f"}};
  EXPECT_EQ(own_gpus(seen, 0, false), (std::vector<int>{0, 1}));
  EXPECT_EQ(own_gpus(seen, 1, false), (std::vector<int>{2, 3, 4}));
  EXPECT_EQ(own_gpus(seen, 2, false), (std::vector<int>{0}));
}

// As Slurm does with --gpus-per-task.
TEST(WorkerGpus, ThatALauncherHasDividedAreTakenWhole) {
  const Seen seen = {{"a", "b"}, {"c", "d"}};
  EXPECT_EQ(own_gpus(seen, 0, false), (std::vector<int>{0, 1}));
  EXPECT_EQ(own_gpus(seen, 1, false), (std::vector<int>{0, 1}));
}

TEST(WorkerGpus, FewerThanWorkersAreRefusedOnAllOrShared) {
  const Seen seen = {{"a"}, {"b", "c"}, {"a"}};
  for (int worker = 0; worker < 3; ++worker) {
    const std::string what = message_of<UsageError>([&] { own_gpus(seen, worker, false); });
    EXPECT_NE(what.find("2 workers of a host share 1 GPU:"), std::string::npos) << what;
  }
  for (int worker : {0, 2}) EXPECT_EQ(own_gpus(seen, worker, true), (std::vector<int>{0}));
  EXPECT_EQ(own_gpus({{"a", "b"}, {"a", "b"}, {"a", "b"}}, 2, true), (std::vector<int>{0}));
}

TEST(WorkerGpus, CarryAsManyReplicasAsAWorkerAsksForOrOneEach) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(devices_of_replicas({2, 3, 4}, 0, 1), (Names{"cuda:2", "cuda:3", "cuda:4"}));
  EXPECT_EQ(devices_of_replicas({2, 3, 4}, 2, 1), (Names{"cuda:2", "cuda:3"}));
  EXPECT_EQ(devices_of_replicas({}, 0, 1), (Names{"cpu:0"}));
  EXPECT_EQ(devices_of_replicas({}, 2, 1), (Names{"cpu:0", "cpu:1"}));
  const std::string what = message_of<UsageError>([] { devices_of_replicas({2}, 2, 1); });
  EXPECT_NE(what.find("worker 1 is to have 2 replicas, but its share of its host's GPUs is 1"),
            std::string::npos)
      << what;
}

TEST(WorkerGpus, AreNoneWhereNoneAreSeen) {
  EXPECT_EQ(own_gpus({{}, {"a"}, {}}, 0, false), std::vector<int>{});
}

}  // namespace
}  // namespace lockstep::testing
