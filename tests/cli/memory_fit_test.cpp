// --fit of plan and train: what makes a step fit into memory.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cli/expect.h"

namespace lockstep {
namespace {

const std::string kFitStep = "--model lenet --devices cpu:0 --batch-per-replica 256";

nlohmann::json proposal_for(const Program& program, const std::string& fit) {
  const Outcome outcome = program.run("plan " + kFitStep + " --json - --fit " + fit);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome.json();
}

// What a plan with such flags needs.
std::size_t planned_bytes(const Program& program, const std::string& flags) {
  const Outcome outcome = program.run("plan " + kFitStep + " --json - " + flags);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome.json().at("devices").at(0).at("resident_bytes");
}

TEST(CliMemoryFit, WhatFitsNeedsNothing) {
  const Program program;
  const nlohmann::json proposal = proposal_for(program, "64GiB");
  EXPECT_TRUE(proposal.at("fits"));
  EXPECT_EQ(proposal.at("flags"), "");
  EXPECT_EQ(proposal.at("candidates").size(), 1U);
}

TEST(CliMemoryFit, ProposesTheFastestCombinationAndItsPlanIsAsLargeAsSaid) {
  const Program program;
  const std::size_t whole = planned_bytes(program, "");
  const std::size_t limit = whole / 2;
  const nlohmann::json proposal = proposal_for(program, std::to_string(limit));
  ASSERT_TRUE(proposal.at("fits")) << proposal.dump(2);
  EXPECT_EQ(proposal.at("memory_bytes"), limit);
  const nlohmann::json& candidates = proposal.at("candidates");
  ASSERT_GE(candidates.size(), 2U);
  double fastest = 0;
  for (const nlohmann::json& each : candidates) {
    EXPECT_EQ(each.at("fits").get<bool>(), each.at("bytes").get<std::size_t>() <= limit);
    EXPECT_GT(each.at("step_ms").get<double>(), 0);
    if (!each.at("fits").get<bool>()) continue;
    EXPECT_GE(each.at("step_ms").get<double>(), fastest);
    fastest = each.at("step_ms");
    EXPECT_EQ(planned_bytes(program, each.at("flags")), each.at("bytes")) << each.dump();
  }
  EXPECT_EQ(proposal.at("flags"), candidates.front().at("flags"));
}

TEST(CliMemoryFit, SaysThatNothingFits) {
  const Program program;
  const Outcome outcome = program.run("plan " + kFitStep + " --fit 1MiB --json plan.json");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("nothing fits"), std::string::npos) << outcome.out;
  const nlohmann::json proposal = parsed(program, "plan.json");
  EXPECT_FALSE(proposal.at("fits"));
  EXPECT_TRUE(proposal.at("flags").is_null());
}

TEST(CliMemoryFit, WrongBytesAreNamed) {
  const Program program;
  expect_wrong_use(program, "plan --model mlp --fit lots", "lots is no number of bytes");
  expect_wrong_use(program, "plan --model mlp --fit -3GiB", "no number of bytes");
}

// The run trains as without, and its record holds what was chosen.
TEST(CliMemoryFit, TrainTakesTheProposalAndKeepsItInTheRecord) {
  const Program program;
  const std::string train =
      "train --model lenet --data synthetic --devices cpu:0 --global-batch 256 --steps 3 --epochs "
      "1 "
      "--optimizer sgd --learning-rate 0.01 ";
  const Outcome plain = program.run(train + "--run-dir plain --json plain.json");
  ASSERT_EQ(plain.code, 0) << plain.err;
  const std::string limit = std::to_string(planned_bytes(program, "--optimizer sgd") / 2);
  const Outcome outcome = program.run(train + "--run-dir fitted --json fitted.json --fit " + limit);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto loss = [](const nlohmann::json& result) {
    return result.at("epochs").at(0).at("val_loss").get<double>();
  };
  EXPECT_NEAR(loss(parsed(program, "fitted.json")), loss(parsed(program, "plain.json")), 1e-4);
  const nlohmann::json options = parsed(program, "fitted/run.json").at("options");
  EXPECT_TRUE(options.at("accumulate") != "1" || options.at("recompute") != "none")
      << options.dump(2);
  const Outcome none = program.run(train + "--run-dir none --fit 1MiB");
  EXPECT_NE(none.code, 0);
  EXPECT_NE(none.err.find("no combination of options would fit"), std::string::npos) << none.err;
}

}  // namespace
}  // namespace lockstep
