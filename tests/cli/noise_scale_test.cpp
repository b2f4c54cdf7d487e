// --noise-scale: what the program says about the noise of gradients.
#include <gtest/gtest.h>

#include "cli/expect.h"

namespace lockstep {
namespace {

constexpr const char* kShortNoisyRun =
    "train --model mlp --data synthetic --optimizer sgd --steps 12 --epochs 1 "
    "--batch-per-replica 16 --learning-rate 0.01 ";

TEST(CliNoiseScale, IsInTheResultWithItsLimitsAndInTheReport) {
  for (const char* devices : {"--devices cpu:0 ", "--devices cpu:0,cpu:1 "}) {
    const Program program;
    const Outcome outcome = program.run(std::string(kShortNoisyRun) + devices +
                                        "--noise-scale 1 --run-dir run --json result.json");
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("gradient noise scale: "), std::string::npos) << outcome.out;
    const auto noise = parsed(program, "result.json").at("noise_scale");
    EXPECT_EQ(noise.at("samples"), 12);
    EXPECT_GT(noise.at("trace").get<double>(), 0);
    EXPECT_LE(noise.at("low").get<double>(),
              noise.at("value").is_null() ? 1e300 : noise.at("value").get<double>());
    EXPECT_GE(noise.at("rate_for_twice_the_batch").get<double>(), 1);
    EXPECT_LE(noise.at("rate_for_twice_the_batch").get<double>(), 2);
    EXPECT_EQ(parsed(program, "run/run.json").at("options").at("noise_scale"), "1");
  }
}

TEST(CliNoiseScale, ChangesNoBitOfTheWeights) {
  const Program program;
  for (const char* often : {"off", "1", "5", "auto"}) {
    const Outcome outcome =
        program.run(std::string(kShortNoisyRun) + "--devices cpu:0,cpu:1 --run-dir " + often +
                    " --noise-scale " + often + " --json " + often + ".json");
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const auto of = [&](const char* name) {
      return parsed(program, std::string(name) + ".json").at("epochs").at(0).at("val_loss");
    };
    EXPECT_EQ(of(often), of("off")) << often;
  }
  EXPECT_FALSE(parsed(program, "off.json").contains("noise_scale"));
}

TEST(CliNoiseScale, AnythingElseIsRejectedWithWhatIsAllowed) {
  const Program program;
  for (const char* wrong : {"0", "-1", "often", "1.5", "99999999999999999999"}) {
    const Outcome outcome = program.run(std::string(kShortNoisyRun) + "--noise-scale " + wrong);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_EQ(outcome.error_lines(), 1u) << outcome.err;
    EXPECT_NE(outcome.err.find("give auto, off, or a number of steps"), std::string::npos)
        << outcome.err;
  }
}

}  // namespace
}  // namespace lockstep
