// Numeric flags: absurd values get one short sentence, sensible ones are taken exactly.
#include <gtest/gtest.h>

#include "cli/expect.h"

namespace lockstep {
namespace {

TEST(Numbers, AbsurdValuesGetOneShortSentence) {
  const Program program;
  const std::string train = "train --model mlp --data synthetic ";
  const std::vector<std::string> whole = {train + "--epochs",
                                          train + "--steps",
                                          train + "--batch-per-replica",
                                          train + "--global-batch",
                                          train + "--replicas",
                                          train + "--cores",
                                          "bench --model mlp --steps",
                                          "bench --model mlp --batch-per-replica",
                                          "plan --model mlp --batch"};
  const std::string long_number(400, '9');
  for (const std::string& flag : whole) {
    for (const std::string value :
         {"0", "-1", "1e400", "9223372036854775807", "nan", "text", "1.5", "''"}) {
      expect_wrong_use(program, flag + " " + value,
                       flag.ends_with("--batch") ? "batch" : flag.substr(flag.rfind("--")));
    }
    const Outcome outcome = program.run(flag + " " + long_number);
    EXPECT_EQ(outcome.code, 2) << flag;
    EXPECT_LT(outcome.err.size(), 200u) << outcome.err;
  }
  for (const std::string value : {"-1", "1e400", "nan", "inf", "text", "9223372036854775807"}) {
    expect_wrong_use(program, train + "--learning-rate " + value, "--learning-rate");
    expect_wrong_use(program, "bench --model mlp --learning-rate " + value, "--learning-rate");
  }
  for (const std::string value : {"-1", "1.5", "text", "18446744073709551616"}) {
    expect_wrong_use(program, train + "--seed " + value, "--seed");
    expect_wrong_use(program, "find-lr --model mlp --seed " + value, "--seed");
  }
  for (const std::string value : {"-1", "1e400", "nan", "inf", "text", "1e300"}) {
    for (const char* flag : {"--from ", "--to "}) {
      const Outcome outcome = program.run("find-lr --model mlp " + (flag + value));
      EXPECT_EQ(outcome.code, 2) << flag << value;
      EXPECT_NE(outcome.err.find("is not a number from 0"), std::string::npos) << outcome.err;
    }
  }
  for (const std::string value : {"-1", "1e400", "9223372036854775807", "nan"}) {
    expect_wrong_use(program, train + "--warm-up-epochs " + value, "--warm-up-epochs");
  }
}

TEST(Numbers, MessagesAreShort) {
  const Program program;
  const Outcome outcome = program.run("train --data synthetic --learning-rate -1");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_LT(outcome.err.size(), 200u) << outcome.err;
}

TEST(Numbers, TheLargestSeedIsAccepted) {
  const Program program;
  const Outcome outcome = program.run(
      "train --model mlp --data synthetic --steps 1 --seed 18446744073709551615 --run-dir run");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(parsed(program, "run/run.json").at("options").at("seed").get<std::uint64_t>(),
            18446744073709551615U);
}

TEST(Numbers, AGlobalBatchNeedNotBeDivisible) {
  const Program program;
  const Outcome outcome = program.run(
      "train --model mlp --data synthetic --steps 2 --global-batch 50 --replicas 3 --json - "
      "--run-dir run");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("global batch 50 = 3 replicas × 17, 17, 16"), std::string::npos)
      << outcome.err;
  EXPECT_EQ(outcome.json().at("by_replica").at(2).at("samples"), 32);
  for (const std::string command : {"train", "find-lr"}) {
    const std::string call = command + " --model mlp --data synthetic --global-batch 2 ";
    expect_wrong_use(program, call + "--replicas 3", "each needs a sample");
    expect_wrong_use(program, call + "--batch-per-replica 3", "give one of the two");
  }
}

TEST(Memory, ABatchThatDoesNotFitGetsOneSentenceBeforeTheFirstStep) {
  const Program program;
  expect_wrong_use(program, "bench --model mlp --batch-per-replica 1000000000", "smaller batch");
  expect_wrong_use(program,
                   "train --model mlp --data synthetic --batch-per-replica 900000000 --run-dir run",
                   "smaller batch");
  EXPECT_FALSE(std::filesystem::exists(program.folder() / "run"));
}

}  // namespace
}  // namespace lockstep
