// What every pipeline must do, whatever its stages.
#include <gtest/gtest.h>

#include <numeric>

#include "data/positions.h"
#include "lockstep/data/dataset.h"

namespace lockstep {
namespace {

Dataset counted(std::int64_t count) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  std::vector<float> halves(values.size() * 2);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<float>(i) * 0.5f;
  return Dataset::from_tensor_slices({Tensor::of(values, {count}), Tensor::of(halves, {count, 2})});
}

Element doubled(const Element& element) {
  Element result{element[0].clone(), element[1]};
  for (std::int32_t& value : result[0].values<std::int32_t>()) value *= 2;
  return result;
}

struct Case {
  const char* name;
  Dataset dataset;
};

std::vector<Case> cases() {
  const Dataset ten = counted(10);
  const ShuffleOptions all{.seed = 7};
  const ShuffleOptions some{.buffer = 4, .seed = 7};
  return {
      {"tensors", ten},
      {"empty", counted(0)},
      {"emptyShuffledRepeatedBatched", counted(0).shuffle(all).repeat().batch(3)},
      {"shuffleAll", ten.shuffle(all)},
      {"shuffleSome", ten.shuffle(some)},
      {"shuffleBufferLargerThanData", ten.shuffle({.buffer = 100, .seed = 7})},
      {"shuffleBufferOfOne", ten.shuffle({.buffer = 1, .seed = 7})},
      {"shuffleTwice", ten.shuffle(some).shuffle({.buffer = 3, .seed = 8})},
      {"shuffleBatches", ten.batch(3).shuffle(some)},
      {"shuffleBatchesAll", ten.batch(3).shuffle(all)},
      {"shuffleMapped", ten.map(doubled).shuffle(some)},
      {"shuffleMappedShuffle", ten.shuffle(all).map(doubled).shuffle(some).batch(2)},
      {"batch", ten.batch(3)},
      {"batchWithoutRemainder", ten.batch(3, {.drop_remainder = true})},
      {"batchOfBatches", counted(12).batch(2).batch(3)},
      {"shuffleBatch", ten.shuffle(all).batch(4)},
      {"take", ten.take(4)},
      {"takeNothing", ten.take(0)},
      {"takeMore", ten.take(40)},
      {"skip", ten.skip(4)},
      {"skipMore", ten.skip(40)},
      {"skipMapped", ten.map(doubled).skip(4)},
      {"shuffleSkipTakeBatch", ten.shuffle(all).skip(2).take(7).batch(2)},
      {"repeat", ten.repeat(3)},
      {"repeatNever", ten.repeat(0)},
      {"shuffleRepeatBatch", ten.shuffle(some).repeat(3).batch(4)},
      {"repeatShuffle", ten.repeat(3).shuffle(some)},
      {"repeatShuffleAll", ten.repeat(3).shuffle(all)},
      {"repeatForEver", ten.shuffle(all).repeat().take(25).batch(4)},
      {"repeatMapped", ten.map(doubled).repeat(2)},
      {"mapBatch", ten.map(doubled).batch(3)},
      {"batchMap", ten.batch(3).map(doubled)},
      {"prefetch", ten.prefetch()},
      {"prefetchOne", ten.shuffle(all).batch(3).prefetch(1)},
      {"prefetchMany", ten.shuffle(some).batch(1).prefetch(100)},
      {"prefetchTwice", ten.batch(1).prefetch(2).map(doubled).prefetch(3)},
      {"prefetchInside", ten.prefetch(2).shuffle(some).batch(3)},
      {"repeatPrefetched", ten.shuffle(all).prefetch(3).repeat(3).batch(4)},
      {"everything", ten.shuffle(some).map(doubled).skip(1).repeat(2).take(15).batch(4).prefetch()},
  };
}

bool same(const std::vector<Element>& a, std::span<const Element> b) {
  return std::ranges::equal(a, b, [](const Element& x, const Element& y) {
    return std::ranges::equal(x, y,
                              [](const Tensor& s, const Tensor& t) { return s.same_bits(t); });
  });
}

TEST(Pipeline, APositionSavedAnywhereGivesTheSameRemainingElements) {
  for (const auto& [name, dataset] : cases()) {
    for (const std::uint64_t epoch : {0, 5}) {
      const std::vector<Element> all = rest_of(*dataset.iterator(epoch));
      const auto iterator = dataset.iterator(epoch);
      for (std::size_t k = 0; k <= all.size(); ++k) {
        const std::string position = iterator->save();
        const auto rest = std::span(all).subspan(k);
        const auto restored = dataset.iterator(epoch + 1);
        restored->restore(position);
        const auto once_more = dataset.iterator();
        once_more->restore(restored->save());
        EXPECT_TRUE(same(rest_of(*once_more), rest)) << name << " saved again, at " << k;
        EXPECT_TRUE(same(rest_of(*restored), rest)) << name << " at " << k;
        restored->restore(position);
        EXPECT_TRUE(same(rest_of(*restored), rest)) << name << " again, at " << k;
        iterator->next();
      }
      EXPECT_TRUE(same(rest_of(*iterator), {})) << name;
    }
  }
}

// Records of different lengths in a shuffle buffer, like those of TFRecord files.
Dataset shuffled_records() {
  return Dataset::range(50)
      .map([](const Element& number) {
        const std::int64_t n = number[0].values<std::int64_t>()[0];
        return Element(std::vector<Tensor>{
            Tensor::of(std::vector<std::uint8_t>(static_cast<std::size_t>(1000 + n),
                                                 static_cast<std::uint8_t>(n)),
                       {1000 + n}),
            Tensor::scalar(static_cast<float>(n))});
      })
      .shuffle({.buffer = 20, .seed = 3});
}

TEST(Pipeline, ElementsOfAShuffleBufferAreSavedAsTensorsWithoutACopy) {
  const auto iterator = shuffled_records().iterator();
  for (int i = 0; i < 7; ++i) iterator->next();
  const IteratorState state = iterator->save_state();
  EXPECT_LT(state.bytes.size(), 20 * 100 + 500u);
  EXPECT_GT(iterator->save().size(), 20 * 1000u);
  EXPECT_EQ(state.values.at(DType::U8).size(), 20u);
  EXPECT_EQ(state.values.at(DType::F32).size(), 20u);
  EXPECT_EQ(iterator->save_state().values.at(DType::U8)[3].raw(),
            state.values.at(DType::U8)[3].raw());
  const std::vector<Element> rest = rest_of(*iterator);
  const auto restored = shuffled_records().iterator();
  restored->restore_state(state);
  EXPECT_TRUE(same(rest_of(*restored), rest));
}

TEST(Pipeline, AStateWithMissingOrMisplacedValuesIsRefused) {
  const auto iterator = shuffled_records().iterator();
  iterator->next();
  const IteratorState whole = iterator->save_state();
  const auto restored = shuffled_records().iterator();
  IteratorState fewer = whole;
  fewer.values[DType::U8].pop_back();
  EXPECT_THROW(restored->restore_state(fewer), UsageError);
  IteratorState none = whole;
  none.values.clear();
  EXPECT_THROW(restored->restore_state(none), UsageError);
  IteratorState moved = whole;
  std::swap(moved.values[DType::U8][0], moved.values[DType::U8][1]);
  EXPECT_THROW(restored->restore_state(moved), UsageError);
}

TEST(Pipeline, APositionOfAnotherKindIsRefusedAndChangesNothing) {
  const std::vector<Case> all = cases();
  for (const auto& [name, dataset] : all) {
    const auto iterator = dataset.iterator();
    iterator->next();
    const std::string before = iterator->save();
    for (const auto& [other_name, other] : {Case{"fewer", counted(9).shuffle({.seed = 7})},
                                            Case{"otherSeed", counted(10).shuffle({.seed = 1})}}) {
      EXPECT_THROW(iterator->restore(other.iterator()->save()), UsageError)
          << name << " from " << other_name;
    }
    EXPECT_THROW(iterator->restore(""), UsageError) << name;
    EXPECT_THROW(iterator->restore("nonsense, but long enough to be one"), UsageError) << name;
    EXPECT_THROW(iterator->restore(before.substr(0, before.size() - 1)), UsageError) << name;
    EXPECT_THROW(iterator->restore(before + "x"), UsageError) << name;
    EXPECT_EQ(iterator->save(), before) << name;
  }
}

TEST(Pipeline, ADamagedPositionIsRefusedAndChangesNothing) {
  for (const auto& [name, dataset] : cases()) {
    const auto iterator = dataset.iterator();
    iterator->next();
    const std::string before = iterator->save();
    std::string damaged = before;
    damaged[damaged.size() - 2] = '\x7F';  // the last count becomes huge
    EXPECT_THROW(iterator->restore(damaged), UsageError) << name;
    EXPECT_EQ(iterator->save(), before) << name;
  }
}

TEST(Pipeline, APositionWithAnyByteChangedIsRefusedOrGivesElements) {
  std::vector<Case> all = cases();
  all.push_back({"records", shuffled_records()});
  for (const auto& [name, dataset] : all) {
    const std::string_view text(name);
    if (text == "repeatForEver") continue;  // a damaged position may be far ahead
    // Starting threads takes too long; other stages restore what prefetch passes on.
    if (text.find("refetch") != std::string_view::npos || text == "everything") continue;
    const auto iterator = dataset.iterator();
    for (int i = 0; i < 3; ++i) iterator->next();
    const IteratorState state = iterator->save_state();
    int refused = 0;
    for (std::size_t place = 0; place < state.bytes.size(); ++place) {
      for (const char value : {'\x01', '\xFF'}) {
        IteratorState damaged = state;
        damaged.bytes[place] = value;
        const auto restored = dataset.iterator();
        try {
          restored->restore_state(damaged);
          EXPECT_LE(rest_of(*restored).size(), 80u) << name << ": byte " << place;
        } catch (const UsageError&) {
          ++refused;
        }
      }
    }
    EXPECT_GT(refused, 0) << name;
  }
}

// A negative row number would address memory before the table.
TEST(Pipeline, AShuffleBufferWithInvalidRowsIsRefused) {
  const Dataset dataset = counted(10).shuffle({.buffer = 4, .seed = 7});
  const auto iterator = dataset.iterator();
  iterator->next();
  IteratorState state = iterator->save_state();
  const auto restored = dataset.iterator();
  // The four row numbers follow their count and precede the input's position.
  std::string count(8, '\0');
  count[0] = 4;
  const std::size_t place = state.bytes.rfind(count);
  ASSERT_NE(place, std::string::npos);
  state.bytes[place + 15] = '\x80';  // the sign of the first row number
  EXPECT_THROW(restored->restore_state(state), UsageError);
}

TEST(Pipeline, ABatchTakesMemoryOnlyForExistingElements) {
  constexpr std::int64_t kHuge = 1'000'000'000'000'000;
  const std::vector<Element> one = rest_of(*counted(10).batch(kHuge).iterator());
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0][0].shape()[0], 10);
  EXPECT_EQ(rest_of(*counted(10).batch(kHuge, {.drop_remainder = true}).iterator()).size(), 0u);
  EXPECT_EQ(rest_of(*counted(10).repeat(2).batch(kHuge).iterator())[0][0].shape()[0], 20);
}

TEST(Pipeline, CardinalityAndSpecMatchTheElements) {
  for (const auto& [name, dataset] : cases()) {
    const std::vector<Element> all = rest_of(*dataset.iterator());
    if (dataset.cardinality()) {
      EXPECT_EQ(*dataset.cardinality(), std::ssize(all)) << name;
    }
    if (all.empty()) continue;
    std::vector<ElementSpec> spec;
    for (const Tensor& tensor : all[0]) spec.push_back({tensor.dtype(), tensor.shape()});
    EXPECT_EQ(dataset.element_spec(), spec) << name;
  }
}

TEST(Pipeline, BatchesWrittenToTheCallersMemoryAreTheSame) {
  for (const auto& [name, dataset] : cases()) {
    const std::vector<ElementSpec> spec = dataset.element_spec();
    if (spec[0].shape.rank() != 1 || spec[1].shape.rank() != 2) continue;
    const auto expected = dataset.iterator();
    const auto iterator = dataset.iterator();
    Element destination;
    for (const ElementSpec& component : spec) {
      destination.emplace_back(component.dtype, component.shape);
    }
    while (const auto rows = iterator->next_into(destination)) {
      const std::optional<Element> element = expected->next();
      ASSERT_TRUE(element) << name;
      for (std::size_t i = 0; i < spec.size(); ++i) {
        EXPECT_TRUE(destination[i].rows(0, *rows).same_bits((*element)[i])) << name;
      }
      EXPECT_EQ(iterator->save(), expected->save()) << name;
    }
    EXPECT_FALSE(expected->next()) << name;
  }
}

TEST(Pipeline, TwoIteratorsAreIndependent) {
  for (const auto& [name, dataset] : cases()) {
    const auto all = rest_of(*dataset.iterator());
    const auto first = dataset.iterator();
    const auto second = dataset.iterator();
    first->next();
    EXPECT_TRUE(same(rest_of(*second), all)) << name;
    EXPECT_EQ(rest_of(*first).size(), all.empty() ? 0 : all.size() - 1) << name;
  }
}

TEST(Pipeline, AnIteratorOutlivesItsDataset) {
  std::unique_ptr<Iterator> iterator;
  {
    const Dataset dataset = counted(10).shuffle({.seed = 1}).map(doubled).repeat(2).prefetch();
    iterator = dataset.iterator();
  }
  EXPECT_EQ(rest_of(*iterator).size(), 20u);
}

TEST(Pipeline, PositionsMoveBetweenPrefetchedAndPlainPipelines) {
  const Dataset plain = counted(10).shuffle({.buffer = 4, .seed = 3}).batch(3);
  const Dataset prefetched =
      counted(10).prefetch(2).shuffle({.buffer = 4, .seed = 3}).prefetch(2).batch(3).prefetch();
  const auto all = rest_of(*plain.iterator());
  for (const auto& [from, to] : {std::pair(plain, prefetched), std::pair(prefetched, plain)}) {
    const auto iterator = from.iterator();
    iterator->next();
    iterator->next();
    const auto restored = to.iterator();
    restored->restore(iterator->save());
    EXPECT_TRUE(same(rest_of(*restored), std::span(all).subspan(2)));
  }
}

}  // namespace
}  // namespace lockstep
