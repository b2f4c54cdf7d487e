// lockstep devices --cluster and lockstep bench as one of several workers.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "cli/expect.h"
#include "lockstep/cluster/control/control_server.h"

namespace lockstep {
namespace {

const std::string kOneOfThem = "'" LOCKSTEP_BINARY_DIR "/bin/lockstep' ";

class ClusterCommands : public ::testing::Test {
 protected:
  void SetUp() override {
    if (control_version().empty()) GTEST_SKIP() << "this build has no gRPC";
  }
  // What so many workers print together, with their numbers before each line.
  Outcome launch(int workers, const std::string& arguments) const {
    return program_.run("launch --workers " + std::to_string(workers) + " -- " + kOneOfThem +
                        arguments);
  }
  const Program program_;
};

void expect_all_links(const nlohmann::json& json, int workers) {
  const auto& links = json.at("links");
  ASSERT_EQ(std::ssize(links), workers * (workers - 1));
  std::set<std::pair<int, int>> seen;
  for (const auto& link : links) {
    const int from = link.at("from");
    const int to = link.at("to");
    EXPECT_NE(from, to);
    EXPECT_TRUE(from >= 0 && from < workers && to >= 0 && to < workers) << link;
    EXPECT_TRUE(seen.emplace(from, to).second) << link;
    EXPECT_FALSE(link.at("transport").get<std::string>().empty());
    for (const char* key : {"latency_s", "bytes_per_s", "both_bytes_per_s"}) {
      EXPECT_GT(link.at(key).get<double>(), 0) << key << " of " << link;
    }
  }
}

TEST_F(ClusterCommands, DevicesMeasuresEveryLink) {
  const Outcome outcome = launch(3, "devices --cluster --json links.json");
  ASSERT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  const auto json = parsed(program_, "links.json");
  EXPECT_EQ(json.at("devices").at(0).at("name"), "cpu:0");
  EXPECT_TRUE(json.at("missing").is_array());
  EXPECT_EQ(json.at("workers").size(), 3u);
  expect_all_links(json, 3);
  // Only the chief shows the matrix and the progress.
  EXPECT_NE(outcome.out.find("[0] 3 workers; shared memory"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("[1] "), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.err.find("measuring links: 0 of 3 pairs"), std::string::npos) << outcome.err;
}

TEST_F(ClusterCommands, DevicesUnderMpirunMeasuresEveryLink) {
  if (!std::filesystem::exists("/usr/bin/mpirun")) GTEST_SKIP() << "there is no mpirun";
  const std::string command = "cd '" + program_.folder().string() +
                              "' && mpirun --allow-run-as-root --oversubscribe --bind-to none "
                              "-n 2 " +
                              kOneOfThem + "devices --cluster --json links.json >.out 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << program_.text(".out");
  expect_all_links(parsed(program_, "links.json"), 2);
}

TEST_F(ClusterCommands, AWorkerAloneIsToldHowToStartSeveral) {
  expect_wrong_use(program_, "devices --cluster", "lockstep launch --workers 2");
}

TEST_F(ClusterCommands, BenchTimesTheStepOfAllWorkersBesideOne) {
  const Outcome outcome =
      launch(2, "bench --model mlp --batch-per-replica 8 --steps 6 --json bench.json");
  ASSERT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  const auto json = parsed(program_, "bench.json");
  EXPECT_EQ(json.at("batch_per_replica"), 8);
  ASSERT_EQ(json.at("results").size(), 2u);
  const auto& one = json.at("results").at(0);
  const auto& two = json.at("results").at(1);
  EXPECT_EQ(one.at("replicas"), 1);
  EXPECT_EQ(one.at("efficiency"), 1.0);
  EXPECT_FALSE(one.contains("workers"));
  EXPECT_EQ(two.at("replicas"), 2);
  EXPECT_EQ(two.at("workers"), 2);
  EXPECT_EQ(two.at("transport"), "shared memory");
  EXPECT_GT(two.at("efficiency").get<double>(), 0);
  EXPECT_GT(two.at("cores_at_once").get<double>(), 0);
  EXPECT_NEAR(two.at("samples_per_s").get<double>() * two.at("step_ms").get<double>(), 16e3, 1);
  EXPECT_NE(outcome.out.find("[0] 2 workers over shared memory"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("[1] "), std::string::npos) << outcome.out;
}

TEST_F(ClusterCommands, BenchExplainsWhyAllWorkersAreNotAsManyTimesAsFast) {
  const Outcome outcome =
      launch(2, "bench --model mlp --batch-per-replica 8 --steps 6 --explain --json bench.json");
  ASSERT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  const auto results = parsed(program_, "bench.json").at("results");
  ASSERT_EQ(results.size(), 2u);
  EXPECT_FALSE(results.at(0).contains("explanation"));
  const auto& explanation = results.at(1).at("explanation");
  EXPECT_EQ(explanation.at("replicas"), 2);
  EXPECT_GE(explanation.at("possible").get<double>(), explanation.at("speed_up").get<double>());
  double whole = explanation.at("speed_up").get<double>() / 2;
  for (const auto& lost : explanation.at("lost")) whole += lost.at("fraction").get<double>();
  EXPECT_NEAR(whole, 1, 1e-9);
  EXPECT_GT(explanation.at("predicted").at("step_ms").get<double>(), 0);
  // The chief says it, with the waterfall from the ideal to what was got.
  EXPECT_NE(outcome.out.find("[0] 2 replicas: "), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("[0] ideal "), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("[0] got "), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("[1] "), std::string::npos) << outcome.out;
}

TEST_F(ClusterCommands, BenchExplainsWorkersThatAccumulateAndShard) {
  const Outcome outcome = launch(2,
                                 "bench --model mlp --batch-per-replica 8 --steps 6 --explain "
                                 "--shard 2 --accumulate 2 --json bench.json");
  ASSERT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(parsed(program_, "bench.json").at("results").at(1).at("explanation").at("replicas"), 2);
}

TEST_F(ClusterCommands, ReplicasOfBenchAreThoseOfEachWorker) {
  const Outcome outcome =
      launch(2, "bench --model mlp --batch-per-replica 8 --steps 6 --replicas 2 --json bench.json");
  ASSERT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(parsed(program_, "bench.json").at("results").at(1).at("replicas"), 4);
}

TEST_F(ClusterCommands, BenchTakesOneReplicaCountPerWorker) {
  const Outcome outcome = launch(2, "bench --model mlp --replicas 1,2");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("--replicas 1,2"), std::string::npos) << outcome.err;
}

// Without --steps the workers agree on how many fit into the time.
TEST_F(ClusterCommands, BenchAgreesOnTheNumberOfSteps) {
  const Outcome outcome = launch(2, "bench --model mlp --batch-per-replica 8 --json bench.json");
  ASSERT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_GT(parsed(program_, "bench.json").at("results").at(1).at("steps").get<int>(), 0);
}

}  // namespace
}  // namespace lockstep
