// lockstep scale of steps that save memory: what each number of replicas needs is what its plan
// says, and what is communicated follows from the options.
#include <gtest/gtest.h>

#include <algorithm>

#include "cli/expect.h"

namespace lockstep {
namespace {

// Measured on one core for a moment; the network is so slow that it decides how long a step takes.
constexpr const char* kOverASlowNetwork =
    "scale --model mlp --optimizer adam --replicas 1,2,4 --topology 1 --network 0.01Gbit,10us "
    "--seconds 0.3 --cores 1 --json - ";

nlohmann::json scaled(const Program& program, const std::string& command) {
  const Outcome outcome = program.run(command);
  EXPECT_EQ(outcome.code, 0) << command << "\n" << outcome.err;
  return outcome.code == 0 ? outcome.json() : nlohmann::json();
}

// By number of replicas: 1, 2, 4.
nlohmann::json row_of(const nlohmann::json& scaled, int replicas) {
  for (const nlohmann::json& row : scaled.at("results")) {
    if (row.at("replicas") == replicas) return row;
  }
  throw std::runtime_error("no such row");
}

int collectives(const nlohmann::json& row, const std::string& op) {
  return static_cast<int>(std::ranges::count_if(
      row.at("buckets"),
      [&](const nlohmann::json& bucket) { return bucket.at("collective") == op; }));
}

class ScaleMemory : public testing::TestWithParam<const char*> {};

TEST_P(ScaleMemory, IsThatOfThePlanForAsManyReplicas) {
  const Program program;
  const std::string flags = std::string(" --batch-per-replica 32 ") + GetParam();
  const nlohmann::json rows = scaled(program, kOverASlowNetwork + flags);
  for (const int replicas : {1, 2, 4}) {
    const nlohmann::json plan =
        scaled(program, "plan --model mlp --optimizer adam --json - --replicas " +
                            std::to_string(replicas) + flags);
    double planned = 0;
    for (const nlohmann::json& device : plan.at("devices")) {
      planned = std::max(planned, device.at("resident_bytes").get<double>());
    }
    // Buckets are cut by what was measured, which moves some of their memory.
    EXPECT_NEAR(row_of(rows, replicas).at("peak_bytes").get<double>(), planned, 0.01 * planned)
        << GetParam() << ", " << replicas << " replicas";
  }
}

INSTANTIATE_TEST_SUITE_P(Options, ScaleMemory,
                         testing::Values("", "--shard 1", "--shard 2", "--shard 3",
                                         "--shard 3 --gather-budget 1kB", "--accumulate 4",
                                         "--accumulate 3 --shard 2 --recompute blocks",
                                         "--accumulate 4 --shard 3 --gather-budget 1kB",
                                         "--gradient-dtype bfloat16",
                                         "--shard 2 --gradient-dtype bfloat16"));

TEST(ScaleOptions, SlicesShrinkWithTheNumberOfReplicas) {
  const Program program;
  constexpr double kParameters = 784 * 128 + 128 + 128 * 10 + 10;
  const auto saved = [&](const char* shard) {
    const nlohmann::json rows =
        scaled(program, kOverASlowNetwork + std::string("--batch-per-replica 32 --shard ") + shard);
    return row_of(rows, 2).at("peak_bytes").get<double>() -
           row_of(rows, 4).at("peak_bytes").get<double>();
  };
  // From a half to a quarter: of Adam's two slots, and of the parameters, too.
  EXPECT_NEAR(saved("0"), 0, 1);
  EXPECT_NEAR(saved("1"), 8 * kParameters / 4, 0.01 * 8 * kParameters);
  EXPECT_NEAR(saved("3"), 12 * kParameters / 4, 0.01 * 12 * kParameters);
}

TEST(ScaleOptions, SlicesAreReduceScatteredAndGathered) {
  const Program program;
  const auto two = [&](const char* flags) {
    return row_of(
        scaled(program, kOverASlowNetwork + std::string("--batch-per-replica 32 ") + flags), 2);
  };
  const nlohmann::json plain = two("");
  const nlohmann::json slots = two("--shard 2");
  const nlohmann::json parameters = two("--shard 3 --gather-budget 1kB");
  EXPECT_EQ(collectives(plain, "reduce_scatter"), 0);
  EXPECT_EQ(collectives(plain, "all_gather"), 0);
  EXPECT_GE(collectives(slots, "reduce_scatter"), 1);
  EXPECT_GE(collectives(slots, "all_gather"), 1);
  // As many bytes as an all-reduce, which is both.
  const auto sent = [](const nlohmann::json& row) { return row.at("sent_bytes").get<double>(); };
  EXPECT_NEAR(sent(slots), sent(plain), 0.01 * sent(plain));
  // Parameters that are released after the forward pass are gathered again for the backward one.
  EXPECT_GT(collectives(parameters, "all_gather"), collectives(slots, "all_gather"));
  EXPECT_GT(sent(parameters), 1.3 * sent(plain));
  EXPECT_GT(parameters.at("step_ms").get<double>(), 1.3 * plain.at("step_ms").get<double>());
}

TEST(ScaleOptions, MicroBatchesCommunicateOnce) {
  const Program program;
  const auto four = [&](const char* flags) {
    return row_of(scaled(program, kOverASlowNetwork + std::string(flags)), 4);
  };
  const nlohmann::json one = four("--batch-per-replica 32");
  const nlohmann::json accumulated = four("--batch-per-replica 128 --accumulate 4");
  EXPECT_EQ(accumulated.at("sent_bytes"), one.at("sent_bytes"));
  EXPECT_GT(accumulated.at("samples_per_s").get<double>(),
            2 * one.at("samples_per_s").get<double>());
  // But each of them gathers the parameters that it does not keep.
  const nlohmann::json gathered =
      four("--batch-per-replica 128 --accumulate 4 --shard 3 --gather-budget 1kB");
  const nlohmann::json whole = four("--batch-per-replica 128 --shard 3 --gather-budget 1kB");
  EXPECT_EQ(collectives(gathered, "reduce_scatter"), collectives(whole, "reduce_scatter"));
  EXPECT_EQ(collectives(gathered, "all_gather"), 4 * collectives(whole, "all_gather"));
}

TEST(ScaleOptions, SixteenBitGradientsAreHalfTheBytes) {
  const Program program;
  const auto sent = [&](const char* flags) {
    return row_of(scaled(program, kOverASlowNetwork + std::string(flags)), 2)
        .at("sent_bytes")
        .get<double>();
  };
  EXPECT_NEAR(sent("--gradient-dtype bfloat16"), sent("") / 2, 100);
  // Of sharded state the updated parameters, which are the other half, are gathered in f32.
  const double sharded = sent("--shard 2");
  EXPECT_NEAR(sent("--shard 2 --gradient-dtype bfloat16"), 0.75 * sharded, 0.01 * sharded);
}

TEST(ScaleOptions, AreThoseOfTheRunUnlessOthersAreGiven) {
  const Program program;
  ASSERT_EQ(program
                .run("train --model mlp --data synthetic --epochs 1 --steps 2 --replicas 2 "
                     "--global-batch 32 --shard 2 --accumulate 2 --run-dir made")
                .code,
            0);
  const std::string scale = "scale made --topology 1 --seconds 0.2 --cores 1 --json - ";
  const nlohmann::json as_it_was = scaled(program, scale).at("options");
  EXPECT_EQ(as_it_was.at("shard"), 2);
  EXPECT_EQ(as_it_was.at("accumulate"), 2);
  const nlohmann::json other = scaled(program, scale + "--shard 0").at("options");
  EXPECT_EQ(other.at("shard"), 0);
  EXPECT_EQ(other.at("accumulate"), 2);
}

TEST(ScaleOptions, AFileIsReplayedAsItWasMeasured) {
  const Program program;
  ASSERT_EQ(program.run(std::string(kOverASlowNetwork) + "--shard 1 --save step.json").code, 0);
  const nlohmann::json rows = scaled(program, "scale step.json --replicas 2,3,8 --json -");
  EXPECT_EQ(rows.at("options").at("shard"), 1);
  // What was not planned lies on the line in 1 / replicas.
  const auto bytes = [&](int replicas) {
    return row_of(rows, replicas).at("peak_bytes").get<double>();
  };
  EXPECT_NEAR((bytes(2) - bytes(3)) / (bytes(2) - bytes(8)),
              (1.0 / 2 - 1.0 / 3) / (1.0 / 2 - 1.0 / 8), 0.02);
  expect_wrong_use(program, "scale step.json --shard 3", "cannot be measured again");
  expect_wrong_use(program, "scale --model mlp --shard 4", "--shard");
  expect_wrong_use(program, "scale --model mlp --accumulate none", "--accumulate none");
}

}  // namespace
}  // namespace lockstep
