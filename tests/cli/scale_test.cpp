// lockstep scale: predictions of other scales.
#include <gtest/gtest.h>

#include <fstream>

#include "cli/expect.h"

namespace lockstep {
namespace {

// So short that it only shows that everything is measured.
constexpr const char* kBriefly = " --seconds 0.2 --cores 1";

TEST(Scale, PredictsEveryNumberOfReplicasBeforeARun) {
  const Program program;
  const Outcome outcome = program.run(std::string("scale --model mlp --batch-per-replica 16 "
                                                  "--replicas 1,2,4,…,4096 --json -") +
                                      kBriefly);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const nlohmann::json results = outcome.json().at("results");
  ASSERT_EQ(results.size(), 13u);
  int expected = 1;
  for (const nlohmann::json& each : results) {
    EXPECT_EQ(each.at("replicas"), expected);
    EXPECT_GT(each.at("step_ms").get<double>(), 0);
    EXPECT_NEAR(each.at("samples_per_s").get<double>(),
                expected * 16 * 1e3 / each.at("step_ms").get<double>(), 1);
    EXPECT_GT(each.at("efficiency").get<double>(), 0);
    EXPECT_LE(each.at("efficiency").get<double>(), 1);
    EXPECT_GT(each.at("peak_bytes").get<std::int64_t>(), 100'000);
    expected *= 2;
  }
}

TEST(Scale, MeasuresTwoDevicesSideBySide) {
  const Program program;
  const Outcome outcome =
      program.run("scale --model mlp --replicas 1,2 --topology 2 --seconds 0.5 --save step.json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("speed-up"), std::string::npos);
  const nlohmann::json step = nlohmann::json::parse(program.text("step.json"));
  ASSERT_FALSE(step.at("jitter").empty());
  int sums = 0;
  double seconds = 0;
  for (const nlohmann::json& each : step.at("instructions")) {
    if (each.contains("collective")) ++sums;
    seconds += each.at("seconds").at("fixed").get<double>() +
               32 * each.at("seconds").at("per_sample").get<double>();
  }
  EXPECT_GT(sums, 0);
  EXPECT_GT(seconds, 0);
}

TEST(Scale, AMeasuredStepIsReplayedWithOtherBatchesAndNetworks) {
  const Program program;
  ASSERT_EQ(
      program.run(std::string("scale --model lenet --replicas 1 --save step.json") + kBriefly).code,
      0);
  const auto step_ms = [&](const std::string& flags) {
    const Outcome outcome = program.run("scale step.json --json - " + flags);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.json().at("results").at(0).at("step_ms").get<double>();
  };
  EXPECT_DOUBLE_EQ(step_ms("--replicas 1"), step_ms("--replicas 1 --network nvlink4"));
  EXPECT_GT(step_ms("--replicas 1 --batch-per-replica 256"), step_ms("--replicas 1"));
  EXPECT_GT(step_ms("--replicas 8 --topology 1 --network 0.1Gbit,10ms"),
            step_ms("--replicas 8 --topology 1 --network 100Gbit"));
  EXPECT_GT(step_ms("--replicas 8 --topology 1 --network 100Gbit"), step_ms("--replicas 1"));
}

TEST(Scale, AGlobalBatchIsDividedOverTheReplicas) {
  const Program program;
  const Outcome outcome = program.run(
      std::string("scale --model lenet --global-batch 64 --replicas 1,4 --json -") + kBriefly);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const nlohmann::json results = outcome.json().at("results");
  EXPECT_EQ(results.at(0).at("batch_per_replica"), 64);
  EXPECT_EQ(results.at(1).at("batch_per_replica"), 16);
  EXPECT_LT(results.at(1).at("efficiency").get<double>(), 1);
  expect_wrong_use(program, "scale --model lenet --global-batch 4 --replicas 8 --seconds 0.1",
                   "--global-batch 4");
}

TEST(Scale, ADeviceThatIsNotHereIsPredictedFromPublishedFiguresAndSaysSo) {
  const Program program;
  const Outcome outcome = program.run(
      std::string("scale --model lenet --replicas 1,8 --device h100 --json -") + kBriefly);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.json().at("measured"), false);
  EXPECT_NE(outcome.json().at("basis").get<std::string>().find("published"), std::string::npos);
}

TEST(Scale, TakesModelAndBatchFromARun) {
  const Program program;
  ASSERT_EQ(program
                .run("train --model mlp --data synthetic --epochs 1 --steps 2 --global-batch 24 "
                     "--run-dir made")
                .code,
            0);
  const Outcome outcome =
      program.run(std::string("scale made --replicas 1,2 --network 25Gbit --json -") + kBriefly);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.json().at("model"), "mlp");
  EXPECT_EQ(outcome.json().at("batch_per_replica"), 24);
}

TEST(Scale, WrongUseGetsOneLine) {
  const Program program;
  expect_wrong_use(program, "scale", "--model");
  expect_wrong_use(program, "scale nowhere", "nowhere");
  expect_wrong_use(program, "scale --model transmogrifier", "transmogrifier");
  expect_wrong_use(program, "scale --model mlp --replicas 0", "--replicas 0");
  expect_wrong_use(program, "scale --model mlp --replicas 4,…,2", "--replicas");
  expect_wrong_use(program, "scale --model mlp --replicas …,2", "--replicas");
  expect_wrong_use(program, "scale --model mlp --replicas 1,many", "many");
  expect_wrong_use(program, "scale --model mlp --network tokenring", "ib-ndr");
  expect_wrong_use(program, "scale --model mlp --topology round", "8x4");
  expect_wrong_use(program, "scale --model mlp --topology 2x2 --replicas 8", "2x2");
  expect_wrong_use(program, "scale --model mlp --device abacus", "h100");
  expect_wrong_use(program, "scale --model mlp --precision float8", "mixed_bfloat16");
  expect_wrong_use(program, "scale --model mlp --seconds 0", "--seconds");
}

TEST(Scale, ADamagedMeasuredStepIsNamed) {
  const Program program;
  std::ofstream(program.folder() / "broken.json") << "{\"format\": \"something else\"}";
  expect_wrong_use(program, "scale broken.json", "broken.json");
}

}  // namespace
}  // namespace lockstep
