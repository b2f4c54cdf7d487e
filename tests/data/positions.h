// Checks what every data set must do: from a position saved anywhere, give the same elements and
// sample ids, whatever the number of threads.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep {

inline Element copy_of(const Element& element) {
  Element copy;
  copy.sample = element.sample;
  for (const Tensor& tensor : element) copy.push_back(tensor.clone());
  return copy;
}

// Up to `most` of the remaining elements of an iterator.
inline std::vector<Element> rest_of(Iterator& iterator, std::size_t most = 1'000'000) {
  std::vector<Element> elements;
  while (elements.size() < most) {
    const std::optional<Element> element = iterator.next();
    if (!element) break;
    elements.push_back(copy_of(*element));
  }
  return elements;
}

inline std::vector<Element> all_of(const Dataset& dataset, std::uint64_t epoch = 0) {
  return rest_of(*dataset.iterator(epoch));
}

inline bool same_element(const Element& a, const Element& b) {
  return a.sample == b.sample &&
         std::ranges::equal(a, b, [](const Tensor& s, const Tensor& t) { return s.same_bits(t); });
}

inline bool same_elements(std::span<const Element> a, std::span<const Element> b) {
  return std::ranges::equal(a, b, same_element);
}

// Data sets that differ only in their number of threads, with a name for messages.
struct Variants {
  std::string name;
  std::vector<Dataset> datasets;
};

// The same data set with 1 to 3 cores.
inline Variants on_any_cores(std::string name, const Dataset& dataset) {
  return {std::move(name),
          {dataset.with_budget({.cores = 1}), dataset.with_budget({.cores = 2}),
           dataset.with_budget({.cores = 3})}};
}

// Expects all variants to give the same elements, and a position saved after every `stride`-th
// element of one to give the same remaining elements in the next one.
inline void expect_positions_hold(const Variants& variants, std::uint64_t epoch = 0,
                                  std::size_t stride = 1) {
  const std::vector<Dataset>& datasets = variants.datasets;
  const std::vector<Element> all = all_of(datasets.front(), epoch);
  for (std::size_t i = 1; i < datasets.size(); ++i) {
    ASSERT_TRUE(same_elements(all_of(datasets[i], epoch), all))
        << variants.name << ", variant " << i;
  }
  std::size_t from = 0;
  auto iterator = datasets[from].iterator(epoch);
  for (std::size_t k = 0; k <= all.size(); ++k) {
    if (k % stride == 0 || k == all.size()) {
      const std::size_t to = (from + 1) % datasets.size();
      const std::string position = iterator->save();
      const IteratorState state = iterator->save_state();
      auto restored = datasets[to].iterator(epoch + 1);
      restored->restore(position);
      const std::size_t some = std::min<std::size_t>(3, all.size() - k);
      ASSERT_TRUE(same_elements(rest_of(*restored, some), std::span(all).subspan(k, some)))
          << variants.name << ", from " << from << " to " << to << ", after " << k;
      // Save and restore once more, to check positions of restored iterators as well.
      auto again = datasets[from].iterator();
      again->restore(restored->save());
      ASSERT_TRUE(same_elements(rest_of(*again), std::span(all).subspan(k + some)))
          << variants.name << ", from " << to << " to " << from << ", after " << k + some;
      ASSERT_TRUE(same_elements(rest_of(*restored), std::span(all).subspan(k + some)))
          << variants.name << ", from " << from << " to " << to << ", after " << k + some;
      // Continue in the other variant from the same position, with its elements as tensors.
      iterator = datasets[to].iterator();
      iterator->restore_state(state);
      from = to;
    }
    ASSERT_EQ(iterator->next().has_value(), k < all.size()) << variants.name << " at " << k;
  }
}

inline void expect_positions_hold(const std::string& name, const Dataset& dataset) {
  for (const std::uint64_t epoch : {0, 2}) {
    expect_positions_hold(on_any_cores(name, dataset), epoch);
  }
}

inline void expect_ids_differ(const std::vector<Element>& elements) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ids;
  for (const Element& element : elements) {
    ids.emplace_back(element.sample.epoch, element.sample.number);
  }
  std::ranges::sort(ids);
  EXPECT_TRUE(std::ranges::adjacent_find(ids) == ids.end());
}

// The first component of each element, an i64 scalar.
inline std::vector<std::int64_t> numbers_of(const std::vector<Element>& elements) {
  std::vector<std::int64_t> numbers;
  for (const Element& element : elements) {
    numbers.push_back(element[0].values<std::int64_t>()[0]);
  }
  return numbers;
}

inline std::vector<std::int64_t> numbers_of(const Dataset& dataset, std::uint64_t epoch = 0) {
  return numbers_of(all_of(dataset, epoch));
}

inline std::vector<std::int64_t> count_up(std::int64_t count, std::int64_t from = 0) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), from);
  return numbers;
}

// The message of the E that a call throws; empty, with a failure, if it throws none.
template <class E>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace lockstep
