#include "lockstep/base/shape.h"

#include <gtest/gtest.h>

#include <limits>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(Shape, AScalarHasOneElementAndNoAxes) {
  const Shape scalar;
  EXPECT_EQ(scalar.rank(), 0);
  EXPECT_EQ(scalar.elements(), 1);
  EXPECT_EQ(scalar.str(), "()");
}

TEST(Shape, CountsElementsAndStridesInRowMajorOrder) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.elements(), 24);
  EXPECT_EQ(shape.strides(), (std::vector<std::int64_t>{12, 4, 1}));
  EXPECT_EQ((Shape{5, 0}).elements(), 0);
}

TEST(Shape, NegativeAxesCountFromTheEnd) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape[-1], 4);
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape.wrap(-3), 0);
  EXPECT_EQ(shape.with(-2, 7), (Shape{2, 7, 4}));
  EXPECT_THROW(shape.wrap(3), UsageError);
  EXPECT_THROW(shape.wrap(-4), UsageError);
}

TEST(Shape, PrintsAsPythonPrintsTuples) {
  EXPECT_EQ((Shape{32, 784}).str(), "(32, 784)");
  EXPECT_EQ((Shape{7}).str(), "(7,)");
  EXPECT_EQ(fmt::format("{}", Shape{1, 2}), "(1, 2)");
}

TEST(Shape, RefusesNegativeAndOverflowingExtents) {
  EXPECT_THROW((Shape{2, -1}), UsageError);
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max() / 4;
  EXPECT_THROW((Shape{huge, 8}), UsageError);
  EXPECT_THROW((Shape{1 << 30, 1 << 30, 1 << 30}), UsageError);
}

TEST(Broadcast, FollowsTheRulesOfNumPy) {
  EXPECT_EQ(broadcast({4, 3}, {3}), (Shape{4, 3}));
  EXPECT_EQ(broadcast({4, 1}, {1, 5}), (Shape{4, 5}));
  EXPECT_EQ(broadcast({}, {2, 2}), (Shape{2, 2}));
  EXPECT_EQ(broadcast({1}, {0}), (Shape{0}));
  EXPECT_EQ(broadcast({2, 1, 3}, {5, 1}), (Shape{2, 5, 3}));
}

TEST(Broadcast, NamesBothShapesIfTheyAreIncompatible) {
  try {
    broadcast({4, 3}, {4});
    FAIL() << "shapes that do not fit were broadcast";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "shapes do not broadcast: (4, 3) with (4,)");
  }
}

}  // namespace
}  // namespace lockstep
