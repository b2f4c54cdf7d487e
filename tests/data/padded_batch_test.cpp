#include <gtest/gtest.h>

#include "data/positions.h"
#include "lockstep/data/datasets.h"

namespace lockstep {
namespace {

// Element i: an f32 matrix of i % 3 + 1 rows and i % 4 columns, counting up from i, and the i64 i.
Dataset matrices(std::int64_t count) {
  const std::vector<ElementSpec> spec = {{DType::F32, {3, 3}, true}, {DType::I64, {}}};
  return Dataset::range(count).map(
      [](const Element& element) {
        const std::int64_t i = element[0].values<std::int64_t>()[0];
        Tensor matrix(DType::F32, {i % 3 + 1, i % 4});
        float value = static_cast<float>(i);
        for (float& each : matrix.values<float>()) each = value++;
        return Element{matrix, element[0]};
      },
      {.spec = spec});
}

// Expects a batch of matrices() to hold `rows`, padded to (height, width).
void expect_batch(const Element& batch, const std::vector<Element>& rows, std::int64_t height,
                  std::int64_t width, float padding) {
  ASSERT_EQ(batch[0].shape(), (Shape{std::ssize(rows), height, width}));
  const auto values = batch[0].values<float>();
  std::size_t at = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const Shape& shape = rows[r][0].shape();
    for (std::int64_t y = 0; y < height; ++y) {
      for (std::int64_t x = 0; x < width; ++x, ++at) {
        const bool inside = y < shape[0] && x < shape[1];
        const auto place = static_cast<std::size_t>(y * shape[1] + x);
        EXPECT_EQ(values[at], inside ? rows[r][0].values<float>()[place] : padding)
            << r << " " << y << " " << x;
      }
    }
    EXPECT_EQ(batch[1].values<std::int64_t>()[r], rows[r][1].values<std::int64_t>()[0]);
  }
  EXPECT_EQ(batch.sample, rows[0].sample);
}

TEST(PaddedBatch, PadsToTheLargestOfTheBatch) {
  const std::vector<Element> rows = all_of(matrices(11));
  const std::vector<Element> batches = all_of(matrices(11).padded_batch(4));
  ASSERT_EQ(batches.size(), 3u);
  for (std::size_t b = 0; b < 3; ++b) {
    const std::vector<Element> in_batch(
        rows.begin() + static_cast<std::ptrdiff_t>(4 * b),
        rows.begin() + std::min<std::ptrdiff_t>(11, static_cast<std::ptrdiff_t>(4 * b + 4)));
    std::int64_t height = 0;
    std::int64_t width = 0;
    for (const Element& row : in_batch) {
      height = std::max(height, row[0].shape()[0]);
      width = std::max(width, row[0].shape()[1]);
    }
    expect_batch(batches[b], in_batch, height, width, 0);
  }
}

TEST(PaddedBatch, PadsToTheGivenShapesWithTheGivenValues) {
  const Dataset dataset = matrices(6).padded_batch(
      4, {.shapes = {{3, 5}, {}}, .values = {-1.5, 0}, .drop_remainder = true});
  const std::vector<Element> rows = all_of(matrices(4));
  const std::vector<Element> batches = all_of(dataset);
  ASSERT_EQ(batches.size(), 1u);
  expect_batch(batches[0], rows, 3, 5, -1.5f);
  EXPECT_EQ(dataset.element_spec(),
            (std::vector<ElementSpec>{{DType::F32, {4, 3, 5}}, {DType::I64, {4}}}));
  EXPECT_EQ(dataset.cardinality(), 1);
  EXPECT_TRUE(matrices(6).padded_batch(4).element_spec()[0].varies);
}

TEST(PaddedBatch, SavedPositionsAreExact) {
  expect_positions_hold("padded", matrices(11).padded_batch(3));
  expect_positions_hold("padded, shuffled",
                        matrices(11).shuffle({.buffer = 5, .seed = 3}).padded_batch(2).prefetch(1));
}

TEST(PaddedBatch, AHeldBatchIsNotOverwritten) {
  const Dataset dataset = matrices(40).padded_batch(2);
  const auto iterator = dataset.iterator();
  std::vector<Element> held;
  while (auto batch = iterator->next()) held.push_back(std::move(*batch));
  EXPECT_TRUE(same_elements(held, all_of(dataset)));
}

TEST(PaddedBatch, AnElementThatDoesNotFitIsNamedAndNotLost) {
  EXPECT_THROW(matrices(6).padded_batch(0), UsageError);
  EXPECT_THROW(matrices(6).padded_batch(2, {.shapes = {{3, 5}}}), UsageError);
  EXPECT_THROW(matrices(6).padded_batch(2, {.shapes = {{3}, {}}}), UsageError);
  EXPECT_THROW(matrices(6).padded_batch(2, {.values = {1}}), UsageError);
  const Dataset dataset = matrices(6).padded_batch(2, {.shapes = {{3, 2}, {}}});
  const auto iterator = dataset.iterator();
  EXPECT_TRUE(iterator->next());
  for (int i = 0; i < 2; ++i) {
    const std::string message = message_of<UsageError>([&] { iterator->next(); });
    EXPECT_TRUE(contains(message, "sample 3")) << message;
    EXPECT_TRUE(contains(message, "(1, 3)")) << message;
    EXPECT_TRUE(contains(message, "(3, 2)")) << message;
  }
  const auto restored = dataset.iterator();
  restored->restore(iterator->save());
  EXPECT_THROW(restored->next(), UsageError);
}

TEST(PaddedBatch, EqualExtentsGiveTheSameAsBatch) {
  const Dataset dataset =
      datasets::synthetic({{DType::U8, {5, 3}}, {DType::F64, {2}}}, {.count = 10});
  EXPECT_TRUE(same_elements(all_of(dataset.padded_batch(4)), all_of(dataset.batch(4))));
}

}  // namespace
}  // namespace lockstep
