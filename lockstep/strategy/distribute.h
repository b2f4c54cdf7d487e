// Distribution as a pass: from a step that adds up gradients in one piece at its end to one that
// adds them up bucket by bucket while the backward pass runs, each bucket with an update of its
// own.
#pragma once

#include "lockstep/passes/pass.h"
#include "lockstep/strategy/buckets.h"

namespace lockstep {

struct DistributeOptions {
  int replicas = 1;
  BucketSizes buckets = {};
};

// On one replica every sum over replicas is taken out. On several, each list of gradients is cut
// into buckets in the order in which the backward pass finishes them, its sums stand right behind
// the last gradient of the bucket, and an Update that read the list becomes one Update a bucket.
class Distribute final : public Pass {
 public:
  explicit Distribute(DistributeOptions options) : options_(options) {}
  std::string_view name() const override { return "distribute"; }
  void run(Graph& graph) override;

 private:
  DistributeOptions options_;
};

}  // namespace lockstep
