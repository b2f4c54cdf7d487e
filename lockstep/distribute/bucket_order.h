// BucketOrder: the numbers of a step's collectives, in the order in which all ranks start them. For
// each bucket: parameters that are gathered before it, values that are communicated aside, its
// gradients, and norms over ranks of which it is the last bucket. Then come norms of parameters
// that updates wait for, and at last the gathers of what was updated.
#pragma once

#include <cstddef>

namespace lockstep {

class BucketOrder {
 public:
  struct Counts {
    std::size_t buckets = 0;
    std::size_t gathers = 0;  // of parameters, before the update
    std::size_t norms = 0;    // over ranks
    std::size_t rounds = 0;   // of norms of parameters, per bucket
    bool two_each = false;    // a bucket may have two collectives: one for what travels aside
  };
  BucketOrder() = default;
  explicit BucketOrder(const Counts& counts) : counts_(counts) {}

  std::size_t of_prefetched(std::size_t next_bucket, std::size_t gather) const {
    return next_bucket * per_bucket() + gather;
  }
  std::size_t of_aside(std::size_t b) const { return b * per_bucket() + counts_.gathers; }
  std::size_t of_bucket(std::size_t b) const { return of_aside(b) + (counts_.two_each ? 1 : 0); }
  std::size_t of_norm(std::size_t last_bucket, std::size_t norm) const {
    return of_bucket(last_bucket) + 1 + norm;
  }
  std::size_t of_round(std::size_t b, std::size_t round) const {
    return counts_.buckets * per_bucket() + counts_.gathers + b * counts_.rounds + round;
  }
  std::size_t of_gather(std::size_t b) const { return of_round(counts_.buckets, 0) + b; }

 private:
  std::size_t per_bucket() const {
    return counts_.gathers + (counts_.two_each ? 2 : 1) + counts_.norms;
  }

  Counts counts_;
};

}  // namespace lockstep
