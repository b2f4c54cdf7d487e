#include "lockstep/explain/measured_step.h"

#include <gtest/gtest.h>

#include "explain/made_step.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::string error_of(const std::string& text) {
  try {
    measured_step_from_json(text, "a.json");
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(MeasuredStep, ComesBackFromItsJson) {
  MeasuredStep step = made_step("cpu");
  step.jitter = {0.9, 1, 1.25};
  step.side_by_side = {{.copies = 2, .slowdown = 1.1}};
  step.host_collectives = {{.ranks = 2, .seconds = 1e-6, .seconds_per_byte = 1e-10}};
  step.meet_seconds = 5e-6;
  step.wire_s_per_byte = 3e-10;
  step.options = {.accumulate = 4,
                  .recompute = "2GiB",
                  .shard = 3,
                  .gather_bytes = 1000,
                  .offload = Offload::Optimizer,
                  .gradients = DType::BF16};
  step.memory_by_ranks = {{.ranks = 1, .bytes = {.fixed = 5, .per_sample = 1}},
                          {.ranks = 4, .bytes = {.fixed = 2, .per_sample = 1}}};
  step.instructions[3].sliced = 0.5;
  const std::string text = to_json(step);
  const MeasuredStep back = measured_step_from_json(text, "a.json");
  EXPECT_EQ(to_json(back), text);
  EXPECT_EQ(back.instructions.size(), step.instructions.size());
  EXPECT_EQ(back.instructions[2].carries.size(), 1u);
  EXPECT_EQ(back.options, step.options);
  EXPECT_DOUBLE_EQ(back.instructions[1].seconds.at(32), step.instructions[1].seconds.at(32));
}

TEST(PerPiece, IsFittedThroughTheFirstMeasurement) {
  const PerPiece line = fit_per_piece({32, 16, 64}, {5 + 32 * 2, 5 + 16 * 2, 5 + 64 * 2});
  EXPECT_NEAR(line.fixed, 5, 1e-12);
  EXPECT_NEAR(line.per_sample, 2, 1e-12);
  const PerPiece noisy = fit_per_piece({32, 16, 64}, {70, 36, 130});
  EXPECT_NEAR(noisy.at(32), 70, 1e-12);
}

TEST(PerPiece, HasNoNegativePart) {
  EXPECT_EQ(fit_per_piece({32, 64}, {10, 8}).per_sample, 0);
  const PerPiece steep = fit_per_piece({32, 64}, {10, 40});
  EXPECT_EQ(steep.fixed, 0);
  EXPECT_DOUBLE_EQ(steep.at(32), 10);
  // Of one size nothing is known but that more samples take longer.
  EXPECT_DOUBLE_EQ(fit_per_piece({32}, {10}).at(64), 20);
}

TEST(MeasuredStep, DamagedTextIsADataErrorThatNamesTheFile) {
  const std::string text = to_json(made_step());
  for (const std::string& damaged :
       {std::string(), text.substr(0, text.size() / 2), std::string("[1, 2]"), std::string("{}"),
        std::string(1000, '[')}) {
    EXPECT_NE(error_of(damaged).find("a.json"), std::string::npos) << damaged.substr(0, 40);
  }
}

TEST(MeasuredStep, ForeignOrImpossibleValuesAreNamed) {
  const std::string text = to_json(made_step());
  EXPECT_NE(error_of(replaced(text, "lockstep measured step", "some trace")).find("format"),
            std::string::npos);
  EXPECT_NE(error_of(replaced(text, "\"batch\": 32", "\"batch\": 0")).find("batch"),
            std::string::npos);
  EXPECT_NE(error_of(replaced(text, "\"fixed\": 0.001", "\"fixed\": -1")).find("fixed"),
            std::string::npos);
  EXPECT_NE(error_of(replaced(text, "\"fixed\": 0.001", "\"fixed\": \"x\"")).find("not a number"),
            std::string::npos);
  EXPECT_NE(error_of(replaced(text, "\"stream\": 1", "\"stream\": 7")).find("stream"),
            std::string::npos);
  EXPECT_NE(error_of(replaced(text, "\"shard\": 0", "\"shard\": 7")).find("shard is 7"),
            std::string::npos);
  EXPECT_NE(error_of(replaced(text, "\"ranks\": 2", "\"ranks\": 0")).find("ranks"),
            std::string::npos);
}

TEST(MeasuredStep, ACollectiveThatThereIsNotIsRejected) {
  MeasuredStep step = made_step();
  step.instructions[2].collective = "all_reduceY";
  const std::string error = error_of(to_json(step));
  EXPECT_NE(error.find("a.json"), std::string::npos) << error;
  EXPECT_NE(error.find("all_reduceY"), std::string::npos) << error;
}

TEST(MeasuredStep, AnInstructionThatWaitsForALaterOneIsRejected) {
  MeasuredStep step = made_step();
  step.instructions[0].after = {5};
  EXPECT_NE(error_of(to_json(step)).find("only wait for those before it"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
