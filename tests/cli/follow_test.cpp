// An evaluator: a process that follows the checkpoints of a run that another process trains.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <thread>

#include "cli/expect.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

constexpr std::int64_t kSteps = 20;  // per epoch
const std::string kTrain =
    "train --model mlp --data synthetic --batch-per-replica 8 --steps 20 --run-dir run --epochs ";
const Words kTrainLong = {
    "train", "--model",  "mlp",    "--data",    "synthetic", "--batch-per-replica", "8", "--steps",
    "20",    "--epochs", "100000", "--run-dir", "run",       "--checkpoint-every",  "7"};
const Words kFollow = {"evaluate", "run", "--follow", "--json", "follow.json"};

// The rows of a file of values separated by commas, by column.
using Row = std::map<std::string, double>;
std::vector<Row> rows_of(const std::string& text) {
  std::istringstream stream(text);
  const auto cells_of = [](const std::string& line) {
    std::vector<std::string> cells;
    std::istringstream parts(line);
    for (std::string cell; std::getline(parts, cell, ',');) cells.push_back(cell);
    return cells;
  };
  std::string line;
  std::getline(stream, line);
  const auto names = cells_of(line);
  std::vector<Row> rows;
  while (std::getline(stream, line)) {
    const auto cells = cells_of(line);
    Row row;
    for (std::size_t i = 0; i < cells.size(); ++i) row[names.at(i)] = std::stod(cells[i]);
    rows.push_back(row);
  }
  return rows;
}

// Blocks until a condition holds; false after a generous time.
bool await(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

bool await_text(const Program& program, const std::string& file, const std::string& text) {
  return await([&] { return program.text(file).find(text) != std::string::npos; });
}

bool await_lines(const Program& program, const std::string& file, int count) {
  return await([&] {
    const std::string text = program.text(file);
    return std::count(text.begin(), text.end(), '\n') >= count;
  });
}

// Replaces a file as a training process does.
void replace(const Program& program, const std::string& file, const std::string& text) {
  const fs::path target = program.folder() / file;
  std::ofstream(target.string() + ".new", std::ios::binary) << text;
  fs::rename(target.string() + ".new", target);
}

void set_status(const Program& program, const std::string& status) {
  auto record = parsed(program, "run/run.json");
  record["state"]["status"] = status;
  replace(program, "run/run.json", record.dump());
}

double loss_by_evaluate(const Program& program) {
  return program.run("evaluate run/checkpoint.safetensors --json -").json().at("loss");
}

// It is started before there is a run, sees checkpoints while they are written, and ends by itself
// with the run.
TEST(Follow, GivesTheLossOfEveryCheckpointWhileTheRunIsTrained) {
  const Program program;
  RunningProgram evaluator(program, kFollow);
  ASSERT_TRUE(evaluator.wait_for("waiting for a run in run")) << program.text(".err");
  RunningProgram training(program, kTrainLong);
  ASSERT_TRUE(await_lines(program, "run/evaluation.csv", 5)) << program.text(".err");
  training.signal(SIGTERM);
  EXPECT_EQ(training.wait(), 128 + SIGTERM);
  EXPECT_EQ(evaluator.wait(), 0) << program.text(".err");
  EXPECT_NE(evaluator.output().find("the run is interrupted: SIGTERM"), std::string::npos)
      << evaluator.output();

  const auto rows = rows_of(program.text("run/evaluation.csv"));
  ASSERT_GE(rows.size(), 4u);
  EXPECT_EQ(rows.back().at("loss"), loss_by_evaluate(program));
  const auto trained = rows_of(program.text("run/metrics.csv"));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto step = static_cast<std::int64_t>(rows[i].at("step"));
    EXPECT_EQ(static_cast<std::int64_t>(rows[i].at("epoch")), (step - 1) / kSteps) << step;
    if (i > 0) {
      EXPECT_GT(rows[i].at("step"), rows[i - 1].at("step"));
      EXPECT_GE(rows[i].at("wall_time"), rows[i - 1].at("wall_time"));
    }
    // What training itself found at the end of the epoch.
    const auto epoch = static_cast<std::size_t>(rows[i].at("epoch"));
    if (step % kSteps == 0 && epoch < trained.size()) {
      EXPECT_NEAR(rows[i].at("loss"), trained[epoch].at("val_loss"), 1e-5) << step;
      EXPECT_NEAR(rows[i].at("accuracy"), trained[epoch].at("val_accuracy"), 1e-5) << step;
    }
  }
  const auto json = parsed(program, "follow.json");
  EXPECT_EQ(json.at("status"), "interrupted");
  EXPECT_EQ(json.at("evaluations").size(), rows.size());
  EXPECT_EQ(json.at("evaluations").back().at("loss"), rows.back().at("loss"));
}

TEST(Follow, EvaluatesTheLastCheckpointOfAFinishedRunOnceAndEnds) {
  const Program program;
  ASSERT_EQ(program.run(kTrain + "2").code, 0);
  const Outcome outcome = program.run("evaluate run --follow --json -");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.json().at("status"), "finished");
  ASSERT_EQ(outcome.json().at("evaluations").size(), 1u);
  const auto evaluation = outcome.json().at("evaluations").front();
  EXPECT_EQ(evaluation.at("step"), 2 * kSteps);
  EXPECT_EQ(evaluation.at("epoch"), 1);
  EXPECT_EQ(evaluation.at("loss").get<double>(), loss_by_evaluate(program));
  const auto rows = rows_of(program.text("run/evaluation.csv"));
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].at("loss"), loss_by_evaluate(program));
}

TEST(Follow, EndsOnASignalWhileItWaits) {
  const Program program;
  RunningProgram evaluator(program, kFollow);
  ASSERT_TRUE(evaluator.wait_for("waiting for a run in run")) << program.text(".err");
  evaluator.signal(SIGTERM);
  EXPECT_EQ(evaluator.wait(), 128 + SIGTERM);
  EXPECT_FALSE(evaluator.ended_by_signal());
  EXPECT_FALSE(fs::exists(program.folder() / "run"));

  ASSERT_EQ(program.run(kTrain + "1").code, 0);
  set_status(program, "running");
  RunningProgram second(program, kFollow);
  ASSERT_TRUE(second.wait_for("\nstep 20, epoch 1: loss ")) << program.text(".err");
  second.signal(SIGINT);
  EXPECT_EQ(second.wait(), 128 + SIGINT);
  EXPECT_FALSE(second.ended_by_signal());
}

TEST(Follow, WarnsOfADamagedCheckpointAndWaitsForTheNext) {
  const Program program;
  ASSERT_EQ(program.run(kTrain + "1").code, 0);
  set_status(program, "running");
  const std::string good = program.text("run/checkpoint.safetensors");
  std::string damaged = good;
  damaged[damaged.size() / 2] ^= 1;
  replace(program, "run/checkpoint.safetensors", damaged);
  RunningProgram evaluator(program, kFollow);
  ASSERT_TRUE(await_text(program, ".err", "warning: ")) << evaluator.output();
  EXPECT_FALSE(fs::exists(program.folder() / "run/evaluation.csv"));
  replace(program, "run/checkpoint.safetensors", good);
  ASSERT_TRUE(evaluator.wait_for("\nstep 20, epoch 1: loss ")) << program.text(".err");
  replace(program, "run/checkpoint.safetensors", good.substr(0, good.size() / 2));
  set_status(program, "failed");
  EXPECT_EQ(evaluator.wait(), 0) << program.text(".err");
  const std::string warnings = program.text(".err");
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 2) << warnings;
  EXPECT_NE(warnings.find("run/checkpoint.safetensors"), std::string::npos) << warnings;
  EXPECT_EQ(rows_of(program.text("run/evaluation.csv")).size(), 1u);
}

TEST(Follow, GivesUpAfterTheTimeout) {
  const Program program;
  const Outcome none = program.run("evaluate nowhere --follow --timeout 1");
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("nowhere: there was no run for 1 s"), std::string::npos) << none.err;
  ASSERT_EQ(program.run(kTrain + "1").code, 0);
  set_status(program, "running");  // as if it had been killed
  const Outcome killed = program.run("evaluate run --follow --timeout 1");
  EXPECT_EQ(killed.code, 2);
  EXPECT_NE(killed.err.find("no new checkpoint for 1 s"), std::string::npos) << killed.err;
  EXPECT_EQ(rows_of(program.text("run/evaluation.csv")).size(), 1u);
}

TEST(Follow, AppendsToTheLinesOfAnEarlierEvaluatorEvenIfThatWasKilled) {
  const Program program;
  ASSERT_EQ(program.run(kTrain + "1").code, 0);
  ASSERT_EQ(program.run("evaluate run --follow").code, 0);
  std::ofstream(program.folder() / "run/evaluation.csv", std::ios::app) << "40,1,0.5";
  ASSERT_EQ(program.run("evaluate run --follow").code, 0);
  const auto rows = rows_of(program.text("run/evaluation.csv"));
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].at("step"), 20);
  EXPECT_EQ(rows[1].at("step"), 40);
  EXPECT_EQ(rows[2].at("step"), 20);
  EXPECT_EQ(rows[2].at("loss"), rows[0].at("loss"));
}

TEST(Follow, RefusesWhatItCannotFollow) {
  const Program program;
  std::ofstream(program.folder() / "file") << "text";
  expect_wrong_use(program, "evaluate file --follow", "this is a file");
  expect_wrong_use(program, "evaluate run --timeout 3", "--follow");
}

// TF_CONFIG and LOCKSTEP_ROLE, in front of the command that the workers get, too.
class AnEvaluator : public ::testing::TestWithParam<const char*> {};

TEST_P(AnEvaluator, FollowsTheRunInsteadOfTraining) {
  const Program program;
  const std::string role = GetParam();
  const Outcome missing = program.run("train --model mlp --data synthetic", role);
  EXPECT_EQ(missing.code, 2);
  EXPECT_NE(missing.err.find("give --run-dir"), std::string::npos) << missing.err;
  EXPECT_FALSE(fs::exists(program.folder() / "runs"));

  ASSERT_EQ(program.run(kTrain + "1").code, 0);
  const Outcome outcome = program.run(kTrain + "1 --strategy multi-worker --json -", role);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.json().at("evaluations").front().at("loss").get<double>(),
            loss_by_evaluate(program));
  EXPECT_EQ(rows_of(program.text("run/evaluation.csv")).size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(
    StartedBy, AnEvaluator,
    ::testing::Values("LOCKSTEP_ROLE=evaluator",
                      "TF_CONFIG='{\"cluster\": {\"chief\": [\"a:1\"], \"worker\": [\"b:1\"]}, "
                      "\"task\": {\"type\": \"evaluator\", \"index\": 0}}'"),
    [](const auto& info) {
      return std::string(info.param).starts_with("TF") ? "TfConfig" : "LockstepRole";
    });

// The end of the earlier call does not count.
TEST(AnEvaluatorOfAResumedRun, WaitsUntilItIsResumed) {
  const Program program;
  ASSERT_EQ(program.run(kTrain + "1").code, 0);
  setenv("LOCKSTEP_ROLE", "evaluator", 1);
  RunningProgram evaluator(program, {"train", "--resume", "run", "--epochs", "2"});
  unsetenv("LOCKSTEP_ROLE");
  ASSERT_TRUE(evaluator.wait_for("is resumed")) << program.text(".err");
  const Outcome rest = program.run("train --resume run --epochs 2");
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(evaluator.wait(), 0) << program.text(".err");
  const auto rows = rows_of(program.text("run/evaluation.csv"));
  ASSERT_FALSE(rows.empty());
  EXPECT_EQ(rows.back().at("step"), 2 * kSteps);
  EXPECT_EQ(rows.back().at("loss"), loss_by_evaluate(program));
}

}  // namespace
}  // namespace lockstep
