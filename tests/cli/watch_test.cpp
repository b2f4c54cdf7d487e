// lockstep watch: shows a run from its folder, and ends with it.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "cli/expect.h"
#include "lockstep/base/error.h"
#include "lockstep/cli/progress_file.h"
#include "lockstep/cli/progress_view.h"

namespace lockstep {
namespace {

using WatchWords = std::vector<std::string>;

const WatchWords kWatchedRun = {
    "train",   "--model",    "mlp",      "--data",    "synthetic",
    "--steps", "20",         "--epochs", "100000",    "--batch-per-replica",
    "8",       "--replicas", "2",        "--run-dir", "run"};

cli::ProgressFile some_file() {
  cli::ProgressFile file{.progress = {}, .model = "mlp", .host = "here"};
  RunProgress& progress = file.progress;
  progress.step = 120;
  progress.epoch = 1;
  progress.epochs = 4;
  progress.epoch_step = 20;
  progress.steps_per_epoch = 100;
  progress.steps = 120;
  progress.seconds = 60;
  progress.loss = 0.25;
  progress.step_s = 0.5;
  progress.samples_per_s = 128;
  progress.logs.set("loss", 0.5);
  progress.logs.set("val_loss", std::numeric_limits<double>::quiet_NaN());
  progress.attribution = {.compute = 0.9, .wait = 0.1};
  progress.devices = {"cpu:0", "cpu:1"};
  progress.workers = 2;
  progress.memory_bytes = 1 << 20;
  progress.batch = 64;
  progress.noise =
      NoiseScale{.value = 100, .low = 50, .high = std::numeric_limits<double>::infinity()};
  progress.slow = "worker 1 is 1.4x slower than the others";
  progress.failures = 1;
  progress.losses = {{0, 2.0}, {60, std::numeric_limits<double>::quiet_NaN()}, {119, 0.25}};
  return file;
}

TEST(ProgressFile, IsReadAsItWasWritten) {
  const std::string text = cli::progress_json(some_file()).dump();
  const cli::ProgressFile read = cli::progress_from_json(text, "here");
  EXPECT_EQ(cli::progress_json(read).dump(), text);
  EXPECT_EQ(read.progress.steps_per_epoch, 100);
  EXPECT_TRUE(std::isinf(read.progress.noise->high));
}

TEST(ProgressFile, WhatIsDamagedForeignOrNewerIsOneErrorThatNamesIt) {
  const std::string text = cli::progress_json(some_file()).dump();
  const auto message = [](const std::string& damaged) -> std::string {
    try {
      cli::progress_from_json(damaged, "run/progress.json");
    } catch (const DataError& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  for (std::size_t length = 0; length < text.size(); length += 7) {
    EXPECT_TRUE(message(text.substr(0, length)).starts_with("run/progress.json: ")) << length;
  }
  EXPECT_NE(message(R"({"format": "something else"})").find("not the progress"), std::string::npos);
  EXPECT_NE(message(R"([1, 2])").find("not the progress"), std::string::npos);
  nlohmann::json newer = nlohmann::json::parse(text);
  newer["format_version"] = 2;
  EXPECT_NE(message(newer.dump()).find("version 2"), std::string::npos) << message(newer.dump());
  nlohmann::json wrong = nlohmann::json::parse(text);
  wrong["step"] = -1;
  EXPECT_NE(message(wrong.dump()).find("cannot be"), std::string::npos) << message(wrong.dump());
}

TEST(ProgressView, FitsTheTerminalAndSaysEverything) {
  for (const int width : {40, 80, 120}) {
    const std::string view = cli::progress_view(some_file(), "runs/last", {.width = width});
    std::istringstream lines(view);
    for (std::string line; std::getline(lines, line);) {
      std::size_t columns = 0;
      for (const char c : line) columns += (c & 0xC0) != 0x80 ? 1 : 0;
      EXPECT_LE(columns, static_cast<std::size_t>(width)) << line;
    }
  }
  const std::string view = cli::progress_view(some_file(), "runs/last", {.width = 120});
  for (const char* part : {"epoch 2/4, step 20/100", "30%", "2:20 left", "128 samples/s", "0.25",
                           "100 (50 to any number)", "1.4x slower", "1.0 MiB"}) {
    EXPECT_NE(view.find(part), std::string::npos) << part << "\n" << view;
  }
  const std::string line = cli::progress_line(some_file().progress);
  for (const char* part : {"epoch 2/4", "128 samples/s", "compute 90%", "1.4x slower"}) {
    EXPECT_NE(line.find(part), std::string::npos) << part << "\n" << line;
  }
}

TEST(Watch, ShowsARunThatGoesOnAndEndsWithIt) {
  const Program program;
  RunningProgram watching(program, {"watch", "run"});
  ASSERT_TRUE(watching.wait_for("waiting for a run in run\n"));
  RunningProgram training(program, kWatchedRun);
  ASSERT_TRUE(watching.wait_for("samples/s"));
  ASSERT_TRUE(watching.wait_for("loss "));
  const Outcome once = program.run("watch run --once --json now.json");
  EXPECT_EQ(once.code, 0) << once.err;
  EXPECT_NE(once.out.find("2 replicas"), std::string::npos) << once.out;
  EXPECT_EQ(parsed(program, "now.json").at("status"), "running");
  training.signal(SIGINT);
  EXPECT_EQ(training.wait(), 128 + SIGINT);
  EXPECT_EQ(watching.wait(), 0);
  EXPECT_NE(watching.output().find("the run is interrupted: SIGINT\n"), std::string::npos)
      << watching.output();
}

TEST(Watch, ARunThatHasFinishedIsShownOnce) {
  const Program program;
  ASSERT_EQ(
      program.run("train --model mlp --data synthetic --steps 5 --epochs 2 --run-dir run").code, 0);
  const Outcome outcome = program.run("watch run --json -");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const nlohmann::json json = outcome.json();
  EXPECT_EQ(json.at("status"), "finished");
  const auto& progress = json.at("progress");
  EXPECT_EQ(progress.at("step"), 10);
  EXPECT_EQ(progress.at("ended"), true);
  EXPECT_TRUE(progress.at("logs").contains("val_loss"));
  const Outcome text = program.run("watch run");
  EXPECT_NE(text.out.find("epoch 2/2, step 5/5"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("the run is finished"), std::string::npos) << text.out;
}

TEST(Watch, NoticesThatTheProcessWasKilled) {
  const Program program;
  RunningProgram training(program, kWatchedRun);
  RunningProgram watching(program, {"watch", "run"});
  ASSERT_TRUE(watching.wait_for("loss "));
  training.signal(SIGKILL);
  EXPECT_EQ(training.wait(), 128 + SIGKILL);
  EXPECT_EQ(watching.wait(), 0);
  EXPECT_NE(watching.output().find("has ended without a word"), std::string::npos)
      << watching.output();
}

TEST(Watch, RefusesWhatIsNotARunOrDamaged) {
  const Program program;
  expect_wrong_use(program, "watch nowhere --once", "there is no run");
  ASSERT_EQ(program.run("train --model mlp --data synthetic --steps 2 --run-dir run").code, 0);
  std::ofstream(program.folder() / "run" / "progress.json") << "{\"format\": ";
  expect_wrong_use(program, "watch run --once", "progress.json");
  std::ofstream(program.folder() / "run" / "run.json") << "[]";
  expect_wrong_use(program, "watch run --once", "run.json");
}

}  // namespace
}  // namespace lockstep
