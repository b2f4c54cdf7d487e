// WorkerRanks: which ranks every worker of a group holds, and which part of the data is its.
#pragma once

#include <numeric>
#include <span>
#include <vector>

#include "lockstep/base/slice.h"
#include "lockstep/comm/local/round.h"

namespace lockstep {

class WorkerRanks {
 public:
  WorkerRanks(std::vector<int> ranks_of_worker, int worker)
      : counts_(std::move(ranks_of_worker)), worker_(worker) {
    for (int first = 0, w = 0; w < workers(); ++w) {
      firsts_.push_back(first);
      first += count(w);
      if (count(w) > 0 && w != worker) peers_.push_back(w);
    }
  }

  int workers() const { return static_cast<int>(counts_.size()); }
  int worker() const { return worker_; }
  int ranks() const { return std::accumulate(counts_.begin(), counts_.end(), 0); }
  int count(int worker) const { return counts_[static_cast<std::size_t>(worker)]; }
  int first(int worker) const { return firsts_[static_cast<std::size_t>(worker)]; }
  // The other workers that hold ranks.
  std::span<const int> peers() const { return peers_; }
  int worker_of(int rank) const {
    int worker = 0;
    while (rank >= first(worker) + count(worker)) ++worker;
    return worker;
  }

  // In elements: the slice of a rank, and those of all ranks of a worker.
  Slice slice(const Round& round, int rank) const {
    return slice_of(round.elements(), size_of(round.dtype), rank, ranks());
  }
  Slice part(const Round& round, int worker) const {
    return {slice(round, first(worker)).begin, slice(round, first(worker) + count(worker) - 1).end};
  }

 private:
  std::vector<int> counts_;
  int worker_;
  std::vector<int> firsts_;
  std::vector<int> peers_;
};

}  // namespace lockstep
