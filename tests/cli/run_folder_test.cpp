// The folders of runs: no two runs share one, and none is overwritten.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "cli/expect.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
const std::string kShortRun =
    "train --model mlp --data synthetic --steps 2 --batch-per-replica 8 --epochs 1 ";
const std::vector<std::string> kEndless = {"train",     "--model", "mlp",      "--data",
                                           "synthetic", "--steps", "100000000"};

std::vector<std::string> endless_in(const std::string& folder) {
  std::vector<std::string> words = kEndless;
  words.insert(words.end(), {"--run-dir", folder});
  return words;
}

TEST(RunFolder, RunsThatStartTogetherGetSeparateFolders) {
  const Program program;
  std::vector<std::unique_ptr<RunningProgram>> runs;
  for (int i = 0; i < 3; ++i) {
    runs.push_back(std::make_unique<RunningProgram>(program, kEndless));
  }
  for (auto& run : runs) ASSERT_TRUE(run->wait_for("test samples of shape"));
  for (auto& run : runs) run->signal(SIGTERM);
  for (auto& run : runs) EXPECT_EQ(run->wait(), 128 + SIGTERM);
  int folders = 0;
  for (const auto& entry : fs::directory_iterator(program.folder() / "runs")) {
    if (entry.is_symlink()) continue;
    ++folders;
    EXPECT_EQ(parsed(program, fs::relative(entry.path() / "run.json", program.folder()).string())
                  .at("state")
                  .at("status"),
              "interrupted");
  }
  EXPECT_EQ(folders, 3);
}

TEST(RunFolder, ARunIsNeverOverwritten) {
  const Program program;
  ASSERT_EQ(program.run(kShortRun + "--run-dir run").code, 0);
  const std::string before = program.text("run/run.json");
  expect_wrong_use(program, kShortRun + "--run-dir run", "--resume run");
  expect_wrong_use(program, kShortRun + "--run-dir ./run/", "--resume run");
  fs::create_directory(program.folder() / "notes");
  std::ofstream(program.folder() / "notes/todo.txt") << "text";
  expect_wrong_use(program, kShortRun + "--run-dir notes", "not empty");
  EXPECT_EQ(program.text("run/run.json"), before);
  fs::create_directory(program.folder() / "empty");
  EXPECT_EQ(program.run(kShortRun + "--run-dir empty").code, 0);
}

TEST(RunFolder, OneProcessAtATimeTrainsInAFolder) {
  const Program program;
  RunningProgram run(program, endless_in("run"));
  ASSERT_TRUE(run.wait_for("test samples of shape"));
  expect_wrong_use(program, kShortRun + "--run-dir run", "run");
  expect_wrong_use(program, "train --resume run", "another process");
  run.signal(SIGTERM);
  EXPECT_EQ(run.wait(), 128 + SIGTERM);
  EXPECT_EQ(program.run("train --resume run --steps 1 --epochs 1").code, 0);
}

TEST(RunFolder, TheLinkToTheLastRunIsNotARunFolder) {
  const Program program;
  expect_wrong_use(program, kShortRun + "--run-dir runs/last", "runs/last");
  ASSERT_EQ(program.run(kShortRun).code, 0);
  expect_wrong_use(program, kShortRun + "--run-dir runs/last", "runs/last");
  expect_wrong_use(program, kShortRun + "--run-dir ./runs/last/", "runs/last");
  EXPECT_TRUE(fs::is_directory(program.folder() / "runs/last"));
  ASSERT_EQ(program.run("train --resume runs/last --epochs 2").code, 0);
  const fs::path run = fs::read_symlink(program.folder() / "runs/last");
  EXPECT_NE(run, "last");
  ASSERT_EQ(program.run("train --resume runs/last/checkpoint.safetensors --epochs 3").code, 0);
  EXPECT_EQ(fs::read_symlink(program.folder() / "runs/last"), run);
  EXPECT_EQ(parsed(program, "runs/last/run.json").at("state").at("epochs_done"), 3);
  // A folder in runs/ becomes the last run however its path is spelled.
  ASSERT_EQ(program.run(kShortRun + "--run-dir ./runs/mine/").code, 0);
  EXPECT_EQ(fs::read_symlink(program.folder() / "runs/last"), "mine");
}

TEST(RunFolder, BracesInItsNameAreKept) {
  const Program program;
  const Outcome outcome = program.run(kShortRun + "--run-dir 'run {epoch} {what}' --json -");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(fs::exists(program.folder() / "run {epoch} {what}/checkpoint.safetensors"));
}

TEST(RunFolder, ARunThatCannotStartLeavesNoFolder) {
  const Program program;
  ASSERT_EQ(program.run(kShortRun + "--run-dir run").code, 0);
  // Weights of another model: noticed only when the run is about to begin.
  fs::create_directory(program.folder() / "old");
  fs::copy(program.folder() / "run/checkpoint.safetensors", program.folder() / "old");
  expect_wrong_use(program,
                   "train --model lenet --data synthetic --steps 2 --resume old --run-dir new", "");
  EXPECT_FALSE(fs::exists(program.folder() / "new"));
}

}  // namespace
}  // namespace lockstep
