// Distribution as a pass: from a step that adds up gradients in one piece at its end to one that
// adds them up bucket by bucket while the backward pass runs, each bucket with an update of its
// own.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "lockstep/passes/pass.h"
#include "lockstep/strategy/buckets.h"

namespace lockstep {

// How lists of gradients were cut, by the parameters that they belong to: members of each bucket,
// by their places in the list. Replicas trace graphs of different sizes, in which gradients may be
// finished in another order; all cut as the first one did.
class BucketMemory {
 public:
  using Parameters = std::vector<const Variable*>;  // null for what is no gradient
  using Members = std::vector<std::vector<std::size_t>>;
  const Members* find(const Parameters& parameters) const;
  const Members& remember(Parameters parameters, Members members);

 private:
  std::map<Parameters, Members> known_;
};

struct DistributeOptions {
  int replicas = 1;
  BucketSizes buckets = {};
  BucketMemory* memory = nullptr;  // shared by all graphs of a session; none: each on its own
};

// On one replica every sum over replicas is taken out. On several, each list of gradients is cut
// into buckets in the order in which the backward pass finishes them, its sums stand right behind
// the last gradient of the bucket, and an Update that read the list becomes one Update a bucket.
// Every sum gets its number, the attribute `order`, in which all replicas must start them.
class Distribute final : public Pass {
 public:
  explicit Distribute(DistributeOptions options) : options_(options) {}
  std::string_view name() const override { return "distribute"; }
  void run(Graph& graph) override;

 private:
  DistributeOptions options_;
};

}  // namespace lockstep
