#include "lockstep/explain/memory_choice.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr double kMega = 1e6;

// A model whose activations take 100 MB for 64 samples and whose state takes 30 MB: a micro-batch
// costs 5% of the time, recomputing blocks 30% and a budget what is missing of it.
MemoryCandidate made_candidate(const MemoryOptions& options, int ranks) {
  double activations = 100 * kMega / static_cast<double>(options.accumulate);
  double state = 30 * kMega;
  if (options.shard >= 1) state -= 20 * kMega * (1 - 1.0 / ranks);
  if (options.shard >= 3) state -= 10 * kMega * (1 - 1.0 / ranks);
  if (options.offload == Offload::Optimizer) state -= 20 * kMega;
  double seconds = 1 + 0.05 * static_cast<double>(options.accumulate - 1) + 0.02 * options.shard;
  if (options.offload == Offload::Optimizer) seconds += 0.5;
  if (options.recompute.kind == Recompute::Kind::Blocks) {
    activations *= 0.2;
    seconds += 0.3;
  }
  if (options.recompute.kind == Recompute::Kind::Budget) {
    const double wanted = static_cast<double>(options.recompute.budget_bytes) - state;
    if (wanted < 0.2 * activations) fail<UsageError>("the budget cannot be met");
    const double saved = std::max(0.0, 1 - wanted / activations);
    activations *= 1 - saved;
    seconds += 0.3 * saved;
  }
  return {
      .options = {}, .bytes = static_cast<std::size_t>(activations + state), .seconds = seconds};
}

MemoryChoice choice_for(MemorySearch search) {
  return choose_memory(
      search, [&](const MemoryOptions& options) { return made_candidate(options, search.ranks); });
}

TEST(MemoryChoice, WhatFitsAsItIsNeedsNothing) {
  const MemoryChoice choice = choice_for({.samples = 64, .memory = 200'000'000});
  ASSERT_NE(choice.best(), nullptr);
  EXPECT_EQ(choice.best()->options, MemoryOptions());
  EXPECT_EQ(choice.candidates.size(), 1U);  // nothing that is more work was tried
  EXPECT_EQ(flags_of(choice.best()->options), "");
}

TEST(MemoryChoice, TakesTheFastestOfThoseThatFit) {
  const MemoryChoice choice = choice_for({.samples = 64, .memory = 100'000'000});
  ASSERT_NE(choice.best(), nullptr);
  EXPECT_EQ(choice.best()->options.accumulate, 2);  // 1.05 s; a budget takes 1.09 s
  for (const MemoryCandidate& each : choice.candidates) {
    EXPECT_EQ(each.fits, each.bytes <= 100'000'000U);
    EXPECT_TRUE(!each.fits || each.seconds >= choice.best()->seconds);
  }
  const auto budget = std::ranges::find_if(choice.candidates, [](const MemoryCandidate& each) {
    return each.options.recompute.kind == Recompute::Kind::Budget;
  });
  ASSERT_NE(budget, choice.candidates.end());
  EXPECT_EQ(budget->options.accumulate, 1);
}

TEST(MemoryChoice, MicroBatchesAreDoubledUpToTheSamples) {
  const MemoryChoice choice = choice_for({.samples = 6, .memory = 50'000'000});
  for (const MemoryCandidate& each : choice.candidates) {
    EXPECT_LE(each.options.accumulate, 6);
  }
  ASSERT_NE(choice.best(), nullptr);
  EXPECT_LE(choice.best()->bytes, 50'000'000U);
}

TEST(MemoryChoice, ShardsOnlyAmongSeveralRanks) {
  MemorySearch search{.ranks = 1, .samples = 64, .memory = 40'000'000};
  for (const MemoryCandidate& each : choice_for(search).candidates) {
    EXPECT_EQ(each.options.shard, 0);
  }
  search.ranks = 4;
  const MemoryChoice several = choice_for(search);
  EXPECT_TRUE(std::ranges::any_of(several.candidates,
                                  [](const auto& each) { return each.options.shard == 3; }));
}

TEST(MemoryChoice, KeepsWhatWasAskedFor) {
  MemorySearch search{.ranks = 4, .samples = 64, .memory = 60'000'000};
  search.asked = {.accumulate = 4, .recompute = "blocks", .shard = 1};
  for (const MemoryCandidate& each : choice_for(search).candidates) {
    EXPECT_EQ(each.options.accumulate, 4);
    EXPECT_EQ(each.options.recompute, Recompute("blocks"));
    EXPECT_EQ(each.options.shard, 1);
  }
}

TEST(MemoryChoice, WhatFitsNowhereHasNoBestAndTheSmallestFirst) {
  const MemoryChoice choice = choice_for({.samples = 64, .memory = 1'000'000});
  EXPECT_EQ(choice.best(), nullptr);
  ASSERT_FALSE(choice.candidates.empty());
  for (const MemoryCandidate& each : choice.candidates) {
    EXPECT_GE(each.bytes, choice.candidates.front().bytes);
  }
}

TEST(MemoryChoice, OffloadsOnlyFromDevicesWithMemoryOfTheirOwn) {
  MemorySearch search{.samples = 1, .memory = 20'000'000};
  const auto offloads = [](const MemoryChoice& choice) {
    return std::ranges::any_of(choice.candidates, [](const auto& each) {
      return each.options.offload == Offload::Optimizer;
    });
  };
  EXPECT_FALSE(offloads(choice_for(search)));
  search.separate_memory = true;
  EXPECT_TRUE(offloads(choice_for(search)));
}

TEST(MemoryChoice, IsSaidAsFlagsAndInWords) {
  const MemoryOptions options{.accumulate = 4,
                              .recompute = "2GiB",
                              .shard = 2,
                              .offload = Offload::Optimizer,
                              .gradients = DType::BF16};
  EXPECT_EQ(flags_of(options),
            "--accumulate 4 --recompute 2147483648B --shard 2 --offload optimizer "
            "--gradient-dtype bfloat16");
  EXPECT_EQ(words_of({}), "nothing");
  EXPECT_EQ(words_of({.accumulate = 2}), "accumulate 2");
}

}  // namespace
}  // namespace lockstep
