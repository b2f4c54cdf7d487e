// --on-nan: what the program does when the loss is not a finite number.
#include <gtest/gtest.h>

#include <filesystem>

#include "cli/expect.h"

namespace lockstep {
namespace {

constexpr const char* kDiverges =
    "train --model mlp --data synthetic --optimizer sgd --schedule constant --learning-rate 1e6 "
    "--steps 8 --epochs 1 ";

TEST(CliOnNaN, StopIsTheDefaultAndExitsWithOneAndNoBadCheckpoint) {
  const Program program;
  const Outcome outcome = program.run(std::string(kDiverges) + "--run-dir run --json result.json");
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_EQ(outcome.error_lines(), 1u) << outcome.err;
  EXPECT_NE(outcome.err.find("training ended: the loss was"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("--learning-rate"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.out.find("warning: the loss was"), std::string::npos) << outcome.out;
  EXPECT_FALSE(std::filesystem::exists(program.folder() / "run" / "checkpoint.safetensors"));
  EXPECT_TRUE(parsed(program, "result.json").at("checkpoint").is_null());
}

TEST(CliOnNaN, LossesThatAreNotFiniteAreNeverTheBest) {
  const Program program;
  const std::string calm =
      "train --model mlp --data synthetic --optimizer sgd --learning-rate 0.01 --steps 8 "
      "--on-nan continue ";
  ASSERT_EQ(program.run(calm + "--run-dir run").code, 0);
  const auto best = parsed(program, "run/run.json").at("state").at("best");
  const Outcome outcome = program.run("train --resume run --epochs 3 --learning-rate 1e6");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(parsed(program, "run/run.json").at("state").at("best"), best);
  ASSERT_EQ(program.run(std::string(kDiverges) + "--on-nan continue --run-dir wild").code, 0);
  EXPECT_FALSE(parsed(program, "wild/run.json").at("state").contains("best"));
}

TEST(CliOnNaN, ContinueAndRestoreKeepTraining) {
  const Program program;
  EXPECT_EQ(program.run(std::string(kDiverges) + "--on-nan continue").code, 0);
  const Outcome restored = program.run(std::string(kDiverges) + "--on-nan restore");
  EXPECT_EQ(restored.code, 0) << restored.err;
  EXPECT_NE(restored.out.find("from the state after step 0"), std::string::npos) << restored.out;
  const Outcome unknown = program.run(std::string(kDiverges) + "--on-nan perhaps");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.err.find("--on-nan"), std::string::npos) << unknown.err;
}

}  // namespace
}  // namespace lockstep
