// Rows of tensors in memory: how they are gathered, and the order in which shuffle gives them.
#include <gtest/gtest.h>

#include "data/positions.h"
#include "lockstep/base/random.h"
#include "lockstep/data/sources/table.h"

namespace lockstep {
namespace {

Tensor some_bytes(std::int64_t rows, std::int64_t each) {
  Tensor bytes(DType::U8, {rows, each});
  RandomSequence random(1, static_cast<std::uint64_t>(each));
  for (std::uint8_t& byte : bytes.values<std::uint8_t>()) {
    byte = static_cast<std::uint8_t>(random.next());
  }
  return bytes;
}

// Rows are copied by whole cache lines plus a remainder, while later rows are prefetched.
TEST(Table, RowsOfAnyLengthAreGatheredExactly) {
  constexpr std::int64_t kRows = 40;
  constexpr float kScale = 1.0f / 255;
  for (const std::int64_t each : {1, 4, 7, 8, 9, 63, 64, 65, 71, 72, 784, 1023, 1024, 1025, 1500}) {
    const Tensor bytes = some_bytes(kRows, each);
    const Table table({{.stored = bytes, .dtype = DType::U8},
                       {.stored = bytes, .dtype = DType::F32, .scale = kScale},
                       {.stored = bytes, .dtype = DType::I32}});
    std::vector<std::int64_t> rows = {3 * kRows + 5, 3 * kRows + 39, 3 * kRows, 4 * kRows + 1, 7};
    for (const std::int64_t count : {0, 1, 5}) {
      const auto some = std::span(rows).first(static_cast<std::size_t>(count));
      Tensor same(DType::U8, {count + 1, each});
      Tensor floats(DType::F32, {count + 1, each});
      Tensor numbers(DType::I32, {count + 1, each});
      table.announce(some);
      table.gather(0, some, same.raw());
      table.gather(1, some, floats.raw());
      table.gather(2, some, numbers.raw());
      for (std::int64_t i = 0; i < (count + 1) * each; ++i) {
        const auto at = static_cast<std::size_t>(i);
        std::uint8_t byte = 0;  // nothing is written past the last row
        if (i < count * each) {
          const std::int64_t row = rows[static_cast<std::size_t>(i / each)] % kRows;
          byte = bytes.values<std::uint8_t>()[static_cast<std::size_t>(row * each + i % each)];
        }
        ASSERT_EQ(same.values<std::uint8_t>()[at], byte) << each << " bytes, at " << i;
        ASSERT_EQ(floats.values<float>()[at], static_cast<float>(byte) * kScale) << each;
        ASSERT_EQ(numbers.values<std::int32_t>()[at], byte) << each;
      }
    }
  }
}

// The order that the head note of shuffle.cpp describes, one draw at a time.
std::vector<std::int64_t> drawn(std::vector<std::int64_t> input, std::size_t buffer,
                                std::uint64_t seed, std::uint64_t epoch) {
  RandomSequence random(seed, combine(hash_name("shuffle"), epoch));
  const std::size_t filled = std::min(buffer, input.size());
  std::vector<std::int64_t> slots(input.begin(),
                                  input.begin() + static_cast<std::ptrdiff_t>(filled));
  std::vector<std::int64_t> given;
  for (std::size_t next = filled; !slots.empty(); ++next) {
    const auto slot = static_cast<std::size_t>(random.below(slots.size()));
    given.push_back(slots[slot]);
    slots[slot] = next < input.size() ? input[next] : slots.back();
    if (next >= input.size()) slots.pop_back();
  }
  return given;
}

TEST(Shuffle, GivesTheSameOrderForAnyBatchSize) {
  for (const std::int64_t rows : {1, 63, 64, 65, 300}) {
    const Dataset input = Dataset::from_tensor_slices({Tensor::of(count_up(rows), {rows})});
    for (const std::int64_t buffer : {1, 2, 63, 64, 65, 100, 1000}) {
      const std::vector<std::int64_t> expected =
          drawn(count_up(rows), static_cast<std::size_t>(buffer), 7, 2);
      const Dataset shuffled = input.shuffle({.buffer = buffer, .seed = 7});
      EXPECT_EQ(numbers_of(shuffled, 2), expected) << rows << " rows, buffer of " << buffer;
      for (const std::int64_t batch : {2, 64, 97}) {
        EXPECT_EQ(numbers_of(shuffled.batch(batch).unbatch(), 2), expected)
            << rows << " rows, buffer of " << buffer << ", batches of " << batch;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
