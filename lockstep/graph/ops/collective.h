// What replicas do together. Every replica runs the same nodes in the same order; on one replica
// they change nothing, and the pass that distributes takes them out.
#pragma once

#include <span>
#include <vector>

#include "lockstep/graph/graph.h"

namespace lockstep {

// The sums of values over all replicas, which every replica then has, to the bit. One node; the
// values are of one dtype. The gradient of a sum over replicas is the sum of their gradients.
std::vector<Value> all_reduce(std::span<const Value> values);
Value all_reduce(Value value);

// The same for gradients and their weight, of which nothing but the optimizer's update waits: the
// pass that distributes may cut the list into buckets, and the plan lets them run beside the rest
// of the backward pass. Such a node has the attribute bucket = true.
std::vector<Value> all_reduce_gradients(std::span<const Value> values);
// The same for a few values of which nothing but updates and assignments waits (how much a batch
// weighs, its statistics): they travel with gradients, so that replicas do not meet for them alone.
// Such a node has the attribute aside = true, too.
std::vector<Value> all_reduce_aside(std::span<const Value> values);
bool is_aside(const Node& node);
// Whether a node is a list of either kind. (The pass gives every sum its number, the attribute
// `order`.)
bool is_bucket(const Node& node);

// Which replica runs the step, an i64 scalar; 0 where there is one. An input that the executor's
// owner fills.
inline constexpr const char* kReplicaInput = "replica";
Value replica_id(Graph& graph);

}  // namespace lockstep
