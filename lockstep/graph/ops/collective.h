// Collectives of the ranks of a group. Every rank runs the same nodes in the same order; on one
// rank they change nothing, and the pass Place removes them. Each changes the placement of a value
// (graph/placement.h):
//
//   all_reduce      Partial or Local → Replicated        reduce_scatter  Partial → Sharded(flat)
//   all_gather      Sharded(flat) → Replicated           own_slice       Replicated → Sharded(flat)
//   broadcast       Local → Replicated
//
// A gradient is that of the total loss. What the total is depends on what follows a collective
// whose result is Replicated (After): if every rank continues with its own computation, the total
// is the sum of the ranks' losses; if all continue with the same one, every rank has the same loss,
// and it counts once.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/graph/graph.h"

namespace lockstep {

enum class After {
  OwnComputation,  // each rank with its own samples: synchronised batch norm, Mirrored's losses
  ReplicatedComputation,  // all ranks the same, with the same values
};

struct CollectiveOptions {
  std::string group = kDataAxis;  // the axis of the mesh along which ranks meet
  After after = After::OwnComputation;
  // Its number among the collectives of the communication stream, if the pass Bucket wrote it.
  std::optional<std::int64_t> order = {};
  // Of the communication stream, for the compute stream: started at its place in the graph, and
  // waited for where its results are first read.
  bool prefetched = false;
};

// A rank's position in its group, which determines its slices.
struct RankInGroup {
  int rank = 0;
  int size = 1;
};

// The sums of values over all ranks, with the same bits on every rank. One node; the values have
// one dtype. The gradient is the sum of the ranks' gradients (own computation), or the gradient
// itself (replicated computation).
std::vector<Value> all_reduce(std::span<const Value> values, const CollectiveOptions& options = {});
Value all_reduce(Value value, const CollectiveOptions& options = {});

// The same for gradients and their weight, for which only the optimizer's update waits: the pass
// Bucket may cut the list into buckets, and the plan lets them overlap the rest of the backward
// pass. Such a node has the attribute bucket = true.
std::vector<Value> all_reduce_gradients(std::span<const Value> values);
// The same for a few values for which only updates and assignments wait (the weight of a batch, its
// statistics): they are communicated with gradients, so that ranks do not meet for them alone. Such
// a node also has the attribute aside = true.
std::vector<Value> all_reduce_aside(std::span<const Value> values);

// Slices of a list are those of its values laid out one after another, row-major, as slice_of cuts
// them: from each value, in one dimension, the elements that are this rank's. Slices may be uneven
// or empty.
//
// This rank's slices of the sums over all ranks. The gradient is gathered from all ranks.
std::vector<Value> reduce_scatter(std::span<const Value> values, RankInGroup here,
                                  const CollectiveOptions& options = {});
// This rank's slices of values that are the same on all ranks. Nothing is communicated, except in
// the gradient, which is gathered.
std::vector<Value> own_slice(std::span<const Value> values, RankInGroup here,
                             const CollectiveOptions& options = {});
// The whole values, of these shapes, from every rank's slices. The gradient of a slice is the sum
// of the ranks' gradients of it (own computation), or is cut out of one (replicated computation).
std::vector<Value> all_gather(std::span<const Value> slices, std::span<const Shape> shapes,
                              RankInGroup here, const CollectiveOptions& options = {});

// What `root` has, on every rank. The gradient belongs to root, and is zero on the others.
Value broadcast(Value value, int root, const CollectiveOptions& options = {});

// A replicated value with which every rank continues in its own computation: the value is
// unchanged, and nothing is communicated; its gradient is the sum of the ranks' gradients. This
// mirrors all_reduce before a replicated computation, which adds values and passes gradients
// through.
Value for_each_rank(Value value, const CollectiveOptions& options = {});

// Whether ranks meet in a node: an op above that communicates.
bool is_collective(const Node& node);
// Whether a node is written for ranks: those, and the two that communicate only in their gradients.
bool is_for_ranks(const Node& node);
bool is_aside(const Node& node);
bool is_prefetched(const Node& node);
// Whether a collective belongs to the communication stream. (The pass Bucket gives every collective
// its number, the attribute `order`.)
bool is_bucket(const Node& node);

// This rank's elements of each value of a list, counted from the beginning of that value.
std::vector<Slice> slices_of(std::span<const ValueType> values, RankInGroup here);
RankInGroup rank_in_group(const Attrs& attrs);

// Which replica runs the step, an i64 scalar; 0 if there is only one. An input that the executor's
// owner fills.
inline constexpr const char* kReplicaInput = "replica";
Value replica_id(Graph& graph);

}  // namespace lockstep
