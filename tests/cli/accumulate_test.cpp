// --accumulate of train, bench and plan.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cli/expect.h"

namespace lockstep {
namespace {

TEST(CliAccumulate, TrainsAsOnTheWholeBatchAndSaysSo) {
  const Program program;
  const auto train = [&](const std::string& accumulate, const char* devices) {
    const std::string name = "of" + accumulate;
    const Outcome outcome =
        program.run(fmt::format("train --model mlp --data synthetic --optimizer sgd --steps 6 "
                                "--epochs 1 --global-batch 24 --learning-rate 0.01 --devices {} "
                                "--accumulate {} --run-dir {} --json {}.json",
                                devices, accumulate, name, name));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out.find("accumulated gradients over") != std::string::npos,
              accumulate == "3")
        << outcome.out;
    return parsed(program, name + ".json");
  };
  const auto whole = train("1", "cpu:0");
  const auto divided = train("3", "cpu:0,cpu:1");
  const auto found = train("auto", "cpu:0");
  EXPECT_EQ(whole.at("micro_batches"), 1);
  EXPECT_EQ(divided.at("micro_batches"), 3);
  EXPECT_EQ(found.at("micro_batches"), 1);  // all of it fits
  const auto loss = [](const auto& result) {
    return result.at("epochs").at(0).at("val_loss").template get<double>();
  };
  EXPECT_NEAR(loss(divided), loss(whole), 1e-5);
  EXPECT_NEAR(loss(found), loss(whole), 1e-9);
}

TEST(CliAccumulate, PlanShowsTheMemoryOfAMicroBatchAndTheAccumulators) {
  const Program program;
  const auto plan = [&](const std::string& accumulate) {
    const Outcome outcome =
        program.run("plan --model lenet --devices cpu:0 --batch-per-replica 256 --accumulate " +
                    accumulate + " --json plan.json");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out.find("accumulators") != std::string::npos, accumulate == "8")
        << outcome.out;
    return parsed(program, "plan.json");
  };
  const auto whole = plan("1");
  const auto divided = plan("8");
  const auto device = [](const auto& json) { return json.at("devices").at(0); };
  EXPECT_EQ(divided.at("micro_batches"), 8);
  EXPECT_EQ(device(whole).at("accumulator_bytes"), 0);
  const auto accumulators = device(divided).at("accumulator_bytes").template get<double>();
  EXPECT_GT(accumulators, 4 * 60'000);
  EXPECT_EQ(device(divided).at("variable_bytes").template get<double>(),
            device(whole).at("variable_bytes").template get<double>() + accumulators);
  EXPECT_LT(device(divided).at("arena_bytes").template get<double>(),
            0.3 * device(whole).at("arena_bytes").template get<double>());
  EXPECT_EQ(plan("auto").at("micro_batches"), 1);
}

TEST(CliAccumulate, BenchTimesStepsOfSeveralMicroBatches) {
  const Program program;
  const Outcome outcome = program.run(
      "bench --model mlp --batch-per-replica 32 --accumulate 4 --steps 3 --devices cpu:0 --json -");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto result = nlohmann::json::parse(outcome.out).at("results").at(0);
  EXPECT_EQ(result.at("micro_batches"), 4);
  EXPECT_GT(result.at("gflops").get<double>(), 0);
}

TEST(CliAccumulate, AnythingElseIsRejectedWithWhatIsAllowed) {
  const Program program;
  for (const char* wrong : {"0", "-1", "often", "1.5", "99999999999999999999"}) {
    const Outcome outcome =
        program.run(std::string("plan --model mlp --devices cpu:0 --accumulate ") + wrong);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_EQ(outcome.error_lines(), 1u) << outcome.err;
    EXPECT_NE(outcome.err.find("or auto"), std::string::npos) << outcome.err;
  }
}

}  // namespace
}  // namespace lockstep
