// What the report of a History mentions, and what it does not.
#include <gtest/gtest.h>

#include "temporary_folder.h"
#include "train/parts.h"
#include "train/problem.h"

namespace lockstep::testing {
namespace {

// A run of 1000 steps in 100 s, of which the given parts are not computation.
History run_of(Attribution parts) {
  History history;
  history.steps = 1000;
  history.seconds = 100;
  history.top_ops = {{.name = "conv2d", .seconds = 1, .share = 1}};
  parts.compute = 1 - sum_of(parts);
  history.attribution = parts;
  return history;
}

bool says(const std::string& report, std::string_view what) {
  return report.find(what) != std::string::npos;
}

TEST(Report, ALongStartGetsNoAdviceOnBatches) {
  History history = run_of({.start = 0.7});
  for (const bool program : {false, true}) {
    const std::string report = history.report({.program = program});
    EXPECT_TRUE(says(report, "The start (planning")) << report;
    EXPECT_TRUE(says(report, "70.0 s, 70%")) << report;
    EXPECT_FALSE(says(report, "larger batch")) << report;
    EXPECT_FALSE(says(report, "goes into computation")) << report;
  }
  history = run_of({.start = 0.1});
  EXPECT_FALSE(says(history.report(), "The start (planning")) << history.report();
}

TEST(Report, MentionsThatManyBatchShapesWerePlanned) {
  History history = run_of({.start = 0.4});
  history.planned = 9;
  EXPECT_TRUE(says(history.report(), "9 steps were planned")) << history.report();
  history.planned = 2;
  EXPECT_FALSE(says(history.report(), "steps were planned")) << history.report();
}

TEST(Report, SuggestsALargerBatchForTimeBetweenKernelsNotForCallbacks) {
  History history = run_of({.host = 0.4});
  EXPECT_TRUE(says(history.report(), "40% of the time was spent between kernels: a larger batch"));
  EXPECT_TRUE(says(history.report({.program = true}), "(--batch-per-replica)"));
  history.callback_seconds = 35;
  EXPECT_TRUE(says(history.report(), "Callbacks took 35% of the time")) << history.report();
  EXPECT_FALSE(says(history.report(), "larger batch")) << history.report();
  EXPECT_FALSE(says(history.report({.program = true}), "Callbacks")) << history.report();
  history.callback_seconds = 0;
  history.steps = 10;  // too few to tell
  EXPECT_FALSE(says(history.report(), "larger batch")) << history.report();
}

TEST(Report, GivesAdviceOnSavingAndValidatingIfTheyTakeLong) {
  EXPECT_TRUE(says(run_of({.checkpoint = 0.3}).report(), "Saving took 30%"));
  EXPECT_TRUE(says(run_of({.checkpoint = 0.3}).report(), "every_steps"));
  EXPECT_TRUE(says(run_of({.checkpoint = 0.3}).report({.program = true}), "--steps"));
  EXPECT_TRUE(says(run_of({.validation = 0.5}).report(), "Validation took 50%"));
  const std::string both = run_of({.validation = 0.1, .checkpoint = 0.1}).report();
  EXPECT_FALSE(says(both, "Saving took")) << both;
  EXPECT_FALSE(says(both, "Validation took")) << both;
  EXPECT_TRUE(says(both, "goes into computation")) << both;
}

TEST(Report, NamesFlagsToUsersOfTheProgram) {
  History history = run_of({.communication = 0.2, .input = 0.2});
  history.first_non_finite_step = 12;
  history.overflowed_steps = 324;
  history.loss_scale = 1;
  history.input = PipelineReport{};
  history.input->limiting = "map decode";
  history.input->advice = "Let it run on several threads: map(…, {.parallel = AUTOTUNE}).";
  history.replicas = {{.device = "cpu:0", .attribution = {.compute = 0.6, .wait = 0.4}},
                      {.device = "cpu:1", .attribution = {.compute = 1.0}}};
  const std::string flags = history.report({.program = true});
  for (const char* flag : {"--learning-rate", "--precision mixed_bfloat16", "--balance auto",
                           "--batch-per-replica", "what limits it: map decode"}) {
    EXPECT_TRUE(says(flags, flag)) << flag << "\n" << flags;
  }
  for (const char* cpp : {"{.", ".global_clipnorm", ".balance", ".precision", "AUTOTUNE"}) {
    EXPECT_FALSE(says(flags, cpp)) << cpp << "\n" << flags;
  }
  const std::string cpp = history.report();
  for (const char* option : {".global_clipnorm", ".balance", ".precision", "AUTOTUNE"}) {
    EXPECT_TRUE(says(cpp, option)) << option << "\n" << cpp;
  }
  EXPECT_FALSE(says(cpp, "--")) << cpp;
}

TEST(Report, DoesNotSuggestABalanceThatIsOn) {
  History history = run_of({});
  history.replicas = {{.device = "cpu:0", .attribution = {.compute = 0.6, .wait = 0.4}},
                      {.device = "cpu:1", .attribution = {.compute = 1.0}}};
  history.balanced = true;
  const std::string report = history.report();
  EXPECT_TRUE(says(report, "cpu:1 is the slowest replica")) << report;
  EXPECT_FALSE(says(report, "balance")) << report;
}

TEST(Report, StartValidationAndSavingAreSeparateParts) {
  const TemporaryFolder folder;
  const Problem data = make_problem(100);
  const Dataset batches =
      Dataset::from_tensor_slices({data.x, data.y}).batch(16);  // the last is short
  Sequential model = make_model();
  model.compile(with_adam());
  const History bare = model.fit(batches, {.epochs = 2});
  EXPECT_NEAR(sum_of(bare.attribution), 1.0, 1e-9);
  EXPECT_GT(bare.attribution.start, 0.0);
  EXPECT_EQ(bare.attribution.validation, 0.0);
  EXPECT_EQ(bare.attribution.checkpoint, 0.0);
  EXPECT_EQ(bare.planned, 2);
  const History whole =
      model.fit(batches, {.epochs = 2,
                          .validation_data = batches,
                          .callbacks = {ModelCheckpoint({.path = (folder / "model").string()})}});
  EXPECT_NEAR(sum_of(whole.attribution), 1.0, 1e-9);
  EXPECT_GT(whole.attribution.validation, 0.0);
  EXPECT_GT(whole.attribution.checkpoint, 0.0);
  EXPECT_EQ(whole.planned, 0);
  // Saving does not count as time of callbacks.
  EXPECT_LT(whole.callback_seconds / whole.seconds, whole.attribution.host + 1e-9);
}

}  // namespace
}  // namespace lockstep::testing
