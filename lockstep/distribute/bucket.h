// Bucket, the second of two passes that distribute a step: turns one all-reduce of all gradients at
// the end of the step into one per bucket, which overlaps the backward pass, each bucket with its
// own update.
#pragma once

#include "lockstep/distribute/bucket_cuts.h"
#include "lockstep/distribute/buckets.h"
#include "lockstep/distribute/gathers.h"
#include "lockstep/distribute/rounding.h"
#include "lockstep/passes/pass.h"

namespace lockstep {

struct BucketOptions {
  int rank = 0;  // along the axis `data`; matters for slices
  int ranks = 1;
  BucketSizes sizes = {};
  // Cuts that were agreed, and where those are stored that this graph adds; shared by all graphs of
  // a session. Null: each graph has its own.
  BucketCuts* cuts = nullptr;
  // The type in which gradients are communicated.
  RoundingOptions rounding = {};
  // Parameters of which ranks have slices: those of this graph are added, and those of others are
  // gathered where this graph reads them. Null: each graph has its own.
  ParameterGroups* groups = nullptr;
  // Whole parameters that may be there at once, in bytes, where ranks have slices; 0: twice the
  // largest bucket.
  std::size_t gather_bytes = 0;
};

// Each list of gradients is cut into buckets in the order in which the backward pass finishes them,
// the all-reduce of a bucket comes right after its last gradient, and an Update that read the list
// becomes one Update per bucket. So does a gradient_norm: the norm of each bucket, and the norm of
// these norms. Every collective gets a number, the attribute `order`: all ranks
// must start them in this order. On one rank there is nothing to do.
//
// With a 16-bit type on the wire, the gradients of a bucket are rounded to it and their sums are
// widened (rounding.h); other values of the bucket have an all-reduce of their own before it.
//
// If Place made the slots Sharded(flat), a bucket is a reduce_scatter of its gradients, an Update
// of the rank's own slices of parameters and slots, an all_gather of the parameters and their
// assignments. Gathers are numbered after all other collectives. Sums that something else reads,
// too, are all-reduced, and the update takes slices of them. Norms of sums, and of parameters, are
// those of the ranks' slices, reduced (sliced_update.h). With a 16-bit type on the wire, what is
// scattered is rounded, and a rank widens its own slices of the sums.
//
// If Place made the parameters Sharded(flat), too, they are variables of which a rank has slices.
// The buckets of which a node reads a parameter are gathered before it (gathers.h), in 16 bits
// where that is all it reads, and the Update changes the slices in place.
class BucketPass final : public Pass {
 public:
  explicit BucketPass(BucketOptions options) : options_(options) {}
  std::string_view name() const override { return "bucket"; }
  void run(Graph& graph) override;

 private:
  BucketOptions options_;
};

}  // namespace lockstep
