// Helpers for tests of several workers that divide a data set.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "data/positions.h"
#include "lockstep/data/dataset.h"

namespace lockstep {

// The shares of workers with as many ranks each.
inline std::vector<WorkerShare> shares_of(int workers, int ranks_each = 1,
                                          AutoShardPolicy policy = AutoShardPolicy::Auto) {
  std::vector<WorkerShare> shares;
  for (int worker = 0; worker < workers; ++worker) {
    shares.push_back({.worker = worker,
                      .workers = workers,
                      .first_rank = worker * ranks_each,
                      .end_rank = (worker + 1) * ranks_each,
                      .ranks = workers * ranks_each,
                      .policy = policy});
  }
  return shares;
}

inline std::vector<std::unique_ptr<Iterator>> iterators_of(const Dataset& dataset,
                                                           const std::vector<WorkerShare>& shares,
                                                           std::uint64_t epoch = 0) {
  std::vector<std::unique_ptr<Iterator>> iterators;
  for (const WorkerShare& share : shares) {
    iterators.push_back(dataset.iterator({.epoch = epoch, .share = share}));
  }
  return iterators;
}

inline std::string bytes_of(const Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.raw()), tensor.bytes()};
}

// Expects the workers to give, together and in order, the rows of these global batches.
inline void expect_pieces(const std::vector<std::unique_ptr<Iterator>>& workers,
                          std::span<const Element> batches) {
  for (std::size_t k = 0; k < batches.size(); ++k) {
    const Element& batch = batches[k];
    const std::int64_t rows = batch[0].shape()[0];
    std::vector<std::string> bytes(batch.size());
    std::int64_t row = 0;
    for (std::size_t w = 0; w < workers.size(); ++w) {
      const std::optional<Element> piece = workers[w]->next();
      ASSERT_TRUE(piece) << "batch " << k << " of " << batches.size() << ", worker " << w;
      ASSERT_EQ(piece->size(), batch.size());
      ASSERT_TRUE(piece->piece && workers[w]->piece() == piece->piece);
      EXPECT_EQ(piece->piece->rows_of_batch, rows);
      ASSERT_EQ(piece->piece->rows.begin, row) << "batch " << k << ", worker " << w;
      row = piece->piece->rows.end;
      for (std::size_t i = 0; i < batch.size(); ++i) {
        ASSERT_EQ((*piece)[i].dtype(), batch[i].dtype());
        ASSERT_EQ((*piece)[i].shape(), batch[i].shape().with(0, piece->piece->rows.size()));
        bytes[i] += bytes_of((*piece)[i]);
      }
    }
    ASSERT_EQ(row, rows) << "batch " << k;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      ASSERT_EQ(bytes[i], bytes_of(batch[i])) << "batch " << k << ", component " << i;
    }
  }
  for (const auto& worker : workers) {
    ASSERT_FALSE(worker->next());
    ASSERT_FALSE(worker->next());
  }
}

// The values of the first component of the remaining batches, all i64.
inline std::vector<std::int64_t> values_of(Iterator& iterator) {
  std::vector<std::int64_t> values;
  while (const std::optional<Element> batch = iterator.next()) {
    const auto some = std::as_const(batch->front()).values<std::int64_t>();
    values.insert(values.end(), some.begin(), some.end());
  }
  return values;
}

inline std::vector<std::int64_t> sorted(std::vector<std::int64_t> values) {
  std::ranges::sort(values);
  return values;
}

}  // namespace lockstep
