// Iterators that start before their first element is requested: the next pass begins while the last
// batches of the current one are consumed.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>

#include "data/positions.h"

namespace lockstep {
namespace {

Dataset shuffled_batches() {
  return Dataset::range(41)
      .shuffle(8, {.seed = 3})
      .map([](const Element& element) { return element; }, {.parallel = 2})
      .batch(4)
      .prefetch(3)
      .with_budget({.cores = 2});
}

TEST(StartEarly, ComputesElementsBeforeTheyAreRequested) {
  std::promise<void> made;
  std::atomic<int> calls = 0;
  const Dataset dataset = Dataset::range(4)
                              .map(
                                  [&](const Element& element) {
                                    if (calls++ == 0) made.set_value();
                                    return element;
                                  },
                                  {.spec = {{DType::I64, {}}}})
                              .prefetch(2);
  const auto iterator = dataset.iterator();
  EXPECT_EQ(calls, 0);
  iterator->start();
  EXPECT_EQ(made.get_future().wait_for(std::chrono::minutes(1)), std::future_status::ready);
  EXPECT_EQ(rest_of(*iterator).size(), 4u);
}

TEST(StartEarly, ChangesNeitherElementsNorPositions) {
  const Dataset dataset = shuffled_batches();
  const std::vector<Element> expected = all_of(dataset, 2);
  for (std::size_t given = 0; given <= expected.size(); ++given) {
    const auto early = dataset.iterator(2);
    early->start();
    early->start();
    const std::vector<Element> first = rest_of(*early, given);
    const std::string position = early->save();
    const auto later = dataset.iterator();
    later->restore(position);
    std::vector<Element> all = first;
    for (Element& element : rest_of(*later)) all.push_back(std::move(element));
    EXPECT_TRUE(same_elements(all, expected)) << given;
    EXPECT_TRUE(same_elements(rest_of(*early), std::span(expected).subspan(given))) << given;
  }
}

TEST(StartEarly, SaysWhenAllElementsAreComputed) {
  const auto iterator = shuffled_batches().iterator();
  EXPECT_FALSE(iterator->all_made());
  iterator->next();
  rest_of(*iterator);
  EXPECT_TRUE(iterator->all_made());
  const auto plain = Dataset::range(3).iterator();  // computes nothing ahead of time
  rest_of(*plain);
  EXPECT_FALSE(plain->all_made());
}

TEST(StartEarly, DoesNotStartAUsersGenerator) {
  std::atomic<int> passes = 0;
  const Generator generator = [&](std::uint64_t) {
    ++passes;
    return [n = 0]() mutable -> std::optional<Element> {
      return n < 3 ? std::optional(Element{Tensor::scalar<std::int64_t>(n++)}) : std::nullopt;
    };
  };
  const Dataset dataset =
      Dataset::from_generator(generator, {.spec = {{DType::I64, {}}}}).batch(1).prefetch(2);
  {
    const auto iterator = dataset.iterator();
    iterator->start();
  }
  EXPECT_EQ(passes, 0);
}

TEST(StartEarly, AnUnusedIteratorReportsNoErrors) {
  const Dataset failing = Dataset::range(4).map(
      [](const Element&) -> Element { throw std::runtime_error("never heard"); },
      {.spec = {{DType::I64, {}}}});
  const auto iterator = failing.prefetch(2).iterator();
  iterator->start();
  const auto heard = failing.prefetch(2).iterator();
  heard->start();
  EXPECT_THROW(heard->next(), DataError);
}

}  // namespace
}  // namespace lockstep
