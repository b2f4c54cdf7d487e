// A run ended by a signal resumes bit for bit, and its exit code names the signal.
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <csignal>

#include "cli/expect.h"

namespace lockstep {
namespace {

const std::vector<std::string> kLong = {
    "train", "--model",  "mlp",        "--data",  "synthetic", "--batch-per-replica",
    "8",     "--epochs", "1000",       "--steps", "20",        "--run-dir",
    "run",   "--json",   "result.json"};

struct Signal {
  int number;
  const char* name;
};

class AnInterruptedRun : public ::testing::TestWithParam<Signal> {};

TEST_P(AnInterruptedRun, SavesReportsItAndExitsWithTheSignalsCode) {
  const Program program;
  RunningProgram run(program, kLong);
  ASSERT_TRUE(run.wait_for("1/1000")) << program.text(".err");
  run.signal(GetParam().number);
  EXPECT_EQ(run.wait(), 128 + GetParam().number) << program.text(".err");
  EXPECT_FALSE(run.ended_by_signal());
  EXPECT_NE(run.output().find("continue with --resume run"), std::string::npos) << run.output();

  const auto json = parsed(program, "result.json");
  EXPECT_EQ(json.at("interrupted"), GetParam().name);
  const auto steps = json.at("steps").get<int>();
  EXPECT_GE(steps, 20);
  EXPECT_LT(steps, 20000);
  const auto state = parsed(program, "run/run.json").at("state");
  EXPECT_EQ(state.at("status"), "interrupted");
  EXPECT_EQ(state.at("why"), GetParam().name);
  EXPECT_GE(state.at("epochs_done").get<int>(), 1);
  EXPECT_LT(state.at("epochs_done").get<int>(), 1000);
  EXPECT_TRUE(std::filesystem::exists(program.folder() / "run/checkpoint.safetensors"));
}

INSTANTIATE_TEST_SUITE_P(Signals, AnInterruptedRun,
                         ::testing::Values(Signal{SIGINT, "SIGINT"}, Signal{SIGTERM, "SIGTERM"},
                                           Signal{SIGHUP, "SIGHUP"}),
                         [](const auto& info) { return std::string(info.param.name); });

// A terminal that closes sends SIGHUP to the shell, which forwards it, and to the program itself.
TEST_P(AnInterruptedRun, SavesEvenIfTheTerminalHangsUpMeanwhile) {
  const Program program;
  RunningProgram run(program, kLong);
  ASSERT_TRUE(run.wait_for("1/1000")) << program.text(".err");
  run.signal(GetParam().number);
  run.wait_until_handled(GetParam().number);
  run.signal(SIGHUP);
  EXPECT_EQ(run.wait(), 128 + GetParam().number) << program.text(".err");
  EXPECT_FALSE(run.ended_by_signal());
  EXPECT_EQ(parsed(program, "run/run.json").at("state").at("why"), GetParam().name);
  EXPECT_TRUE(std::filesystem::exists(program.folder() / "run/checkpoint.safetensors"));
}

// Record, report, result and exit code agree, whenever the signal arrives.
TEST(ASignalAfterTheLastEpoch, InterruptsNothing) {
  const Program program;
  const std::filesystem::path pipe = program.folder() / "result";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  RunningProgram run(program, {"train", "--model", "mlp", "--data", "synthetic", "--steps", "4",
                               "--cores", "1", "--run-dir", "run", "--json", "result"});
  ASSERT_TRUE(run.wait_for("checkpoint    run")) << program.text(".err");
  run.signal(SIGTERM);  // while the program waits for a reader of the result
  run.wait_until_handled(SIGTERM);
  const auto json = nlohmann::json::parse(program.text("result"));
  EXPECT_EQ(run.wait(), 0) << program.text(".err");
  EXPECT_FALSE(json.contains("interrupted"));
  EXPECT_EQ(run.output().find("interrupted"), std::string::npos) << run.output();
  EXPECT_EQ(parsed(program, "run/run.json").at("state").at("status"), "finished");
}

TEST(AnInterruptedRunContinues, BitForBitLikeAnUninterruptedOne) {
  const Program program;
  const std::string common =
      "train --model mlp --data synthetic --batch-per-replica 8 --seed 7 --cores 1 --json - ";
  RunningProgram first(
      program, {"train", "--model", "mlp", "--data", "synthetic", "--batch-per-replica", "8",
                "--seed", "7", "--cores", "1", "--epochs", "40", "--steps", "100", "--run-dir",
                "parts", "--json", "parts.json"});
  ASSERT_TRUE(first.wait_for("1/40")) << program.text(".err");
  first.signal(SIGTERM);
  ASSERT_EQ(first.wait(), 128 + SIGTERM) << program.text(".err");
  const int done = parsed(program, "parts.json").at("steps").get<int>();
  ASSERT_GE(done, 100);
  ASSERT_LT(done, 4000);
  const Outcome rest = program.run("train --resume parts --json -");
  ASSERT_EQ(rest.code, 0) << rest.err;
  const Outcome whole = program.run(common + "--epochs 40 --steps 100 --run-dir whole");
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_EQ(rest.json().at("steps").get<int>() + done, 4000);
  EXPECT_EQ(rest.json().at("epochs").back().at("loss"),
            whole.json().at("epochs").back().at("loss"));
  EXPECT_EQ(rest.json().at("epochs").back().at("val_loss"),
            whole.json().at("epochs").back().at("val_loss"));
  EXPECT_EQ(parsed(program, "parts/run.json").at("state").at("status"), "finished");
}

TEST(AHangupThatIsIgnored, InterruptsNothing) {
  const Program program;
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  struct sigaction before = {};
  sigaction(SIGHUP, &ignore, &before);
  RunningProgram run(program, {"train", "--model", "mlp", "--data", "synthetic", "--steps", "50",
                               "--cores", "1", "--run-dir", "run", "--json", "result.json"});
  sigaction(SIGHUP, &before, nullptr);
  ASSERT_TRUE(run.wait_for("test samples of shape")) << program.text(".err");
  run.signal(SIGHUP);
  EXPECT_EQ(run.wait(), 0) << program.text(".err");
  EXPECT_FALSE(parsed(program, "result.json").contains("interrupted"));
}

}  // namespace
}  // namespace lockstep
