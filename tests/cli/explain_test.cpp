// lockstep explain: what a run recorded becomes an account that adds up; other folders are refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "cli/expect.h"
#include "cli/program.h"

namespace lockstep {
namespace {

const std::string kRun =
    "train --model mlp --data synthetic --batch-per-replica 16 --steps 40 --epochs 2 --run-dir "
    "run ";

void expect_account(const nlohmann::json& json, int replicas) {
  EXPECT_EQ(json.at("replicas"), replicas);
  double fractions = json.at("speed_up").get<double>() / replicas;
  for (const auto& lost : json.at("lost")) {
    EXPECT_GT(lost.at("fraction").get<double>(), 0) << lost;
    EXPECT_FALSE(lost.at("cause").get<std::string>().empty());
    fractions += lost.at("fraction").get<double>();
  }
  EXPECT_NEAR(fractions, 1.0, 1e-6) << json;
  for (const auto& advice : json.at("advice")) {
    EXPECT_GT(advice.at("speed_up").get<double>(), 1.0);
    EXPECT_GT(advice.at("sure").get<double>(), 0.0);
    EXPECT_LE(advice.at("sure").get<double>(), 1.0);
  }
}

TEST(ExplainCommand, AccountsForTheTimeOfARun) {
  const Program program;
  ASSERT_EQ(program.run(kRun + "--replicas 2").code, 0);
  std::filesystem::remove(program.folder() / "run" / "measured.json");
  const Outcome outcome = program.run("explain run --no-measure --json -");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_account(outcome.json(), 2);
  EXPECT_TRUE(outcome.json().at("advice").empty());
  const std::string text = program.run("explain run --no-measure").out;
  EXPECT_NE(text.find("together"), std::string::npos) << text;
  EXPECT_NE(text.find("What one device does alone is not known"), std::string::npos) << text;
}

TEST(ExplainCommand, MeasuresOneDeviceAloneOnceAndPredictsTheRun) {
  const Program program;
  ASSERT_EQ(program.run(kRun + "--replicas 2").code, 0);
  std::filesystem::remove(program.folder() / "run" / "measured.json");
  const Outcome outcome = program.run("explain run --json -");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_account(outcome.json(), 2);
  EXPECT_GT(outcome.json().at("predicted").at("step_ms").get<double>(), 0);
  ASSERT_TRUE(std::filesystem::exists(program.folder() / "run" / "measured.json"));
  // What was measured stays, so that the account does, too.
  const Outcome again = program.run("explain run --no-measure --json -");
  EXPECT_EQ(again.json().at("lost"), outcome.json().at("lost"));
}

TEST(ExplainCommand, NamesTheReplicasOfSeveralWorkers) {
  const Program program;
  const Outcome trained = program.run(
      "launch --workers 2 -- " + std::string("'" LOCKSTEP_BINARY_DIR "/bin/lockstep' ") + kRun);
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Outcome outcome = program.run("explain run --no-measure --json -");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_account(outcome.json(), 2);
  const auto profile = parsed(program, "run/profile.json");
  EXPECT_EQ(profile.at("workers"), 2);
  // An example step has the tracks of both.
  std::set<int> workers;
  for (const auto& example : profile.at("examples")) {
    for (const auto& track : example.at("tracks")) workers.insert(track.at("worker").get<int>());
  }
  EXPECT_EQ(workers, (std::set<int>{0, 1}));
}

TEST(ExplainCommand, RefusesWhatIsNotARunOrDamaged) {
  const Program program;
  expect_wrong_use(program, "explain nowhere", "nowhere");
  std::filesystem::create_directories(program.folder() / "empty");
  expect_wrong_use(program, "explain empty", "not the folder of a run");
  ASSERT_EQ(program.run(kRun).code, 0);
  const std::filesystem::path file = program.folder() / "run" / "profile.json";
  const auto size = std::filesystem::file_size(file);
  std::filesystem::resize_file(file, size / 2);
  expect_wrong_use(program, "explain run", "profile.json");
  std::ofstream(file) << "{\"format\": \"something else\"}";
  expect_wrong_use(program, "explain run", "not the profile of a run");
  std::filesystem::remove(file);
  expect_wrong_use(program, "explain run", "has not recorded its times");
}

}  // namespace
}  // namespace lockstep
