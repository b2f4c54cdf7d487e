// Bucket, the second of two passes that distribute a step: turns one all-reduce of all gradients at
// the end of the step into one per bucket, which overlaps the backward pass, each bucket with its
// own update.
#pragma once

#include "lockstep/distribute/bucket_cuts.h"
#include "lockstep/distribute/buckets.h"
#include "lockstep/passes/pass.h"

namespace lockstep {

struct BucketOptions {
  int rank = 0;  // along the axis `data`; matters for slices
  int ranks = 1;
  BucketSizes sizes = {};
  // Cuts that were agreed, and where those are stored that this graph adds; shared by all graphs of
  // a session. Null: each graph has its own.
  BucketCuts* cuts = nullptr;
};

// Each list of gradients is cut into buckets in the order in which the backward pass finishes them,
// the all-reduce of a bucket comes right after its last gradient, and an Update that read the list
// becomes one Update per bucket. Every collective gets a number, the attribute `order`: all ranks
// must start them in this order. On one rank there is nothing to do.
//
// If Place made the slots Sharded(flat), a bucket is a reduce_scatter of its gradients, an Update
// of the rank's own slices of parameters and slots, an all_gather of the parameters and their
// assignments. Gathers are numbered after all other collectives.
class BucketPass final : public Pass {
 public:
  explicit BucketPass(BucketOptions options) : options_(options) {}
  std::string_view name() const override { return "bucket"; }
  void run(Graph& graph) override;

 private:
  BucketOptions options_;
};

}  // namespace lockstep
