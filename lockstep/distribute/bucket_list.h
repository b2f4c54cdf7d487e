// GradientBuckets: which of the values that a graph reduces over the ranks are communicated
// together. The pass Bucket writes what becomes of them.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/distribute/bucket_cuts.h"
#include "lockstep/distribute/buckets.h"
#include "lockstep/graph/graph.h"

namespace lockstep {

// Inputs of an Update before its parameters: rate, scale, step.
inline constexpr std::size_t kUpdateScalars = 3;

// A value that is reduced over the ranks: one of a list.
struct BucketMember {
  const Node* list = nullptr;
  std::size_t place = 0;

  ValueId value() const { return list->inputs[place]; }
  ValueId sum() const { return list->outputs[place]; }
};

// The lists of a graph, cut into buckets. A list of gradients also takes the values that are marked
// `aside`, each in the first bucket that is finished no earlier than the value.
class GradientBuckets {
 public:
  // The graph must outlive it.
  GradientBuckets(const Graph& graph, BucketSizes sizes, BucketCuts& cuts);

  // The members of each bucket, which are communicated together.
  const std::vector<std::vector<BucketMember>>& all() const { return buckets_; }
  // The bucket that a value of the graph comes out of, and its position there; none for others.
  std::optional<std::pair<std::size_t, std::size_t>> of(ValueId sum) const;
  // The bucket that reduces a value, or whose result it is.
  std::size_t that_has(ValueId id) const;
  // The parameter whose gradient a member is; null: none.
  const Variable* parameter(const BucketMember& member) const;
  // Its value in the graph.
  ValueId parameter_value(const BucketMember& member) const;

 private:
  void find_parameters();
  void find_dependents();
  bool is_independent(const Node& list) const;
  std::map<const Node*, const Node*> find_carried() const;
  void add(const Node& node, const std::map<const Node*, const Node*>& carried, BucketSizes sizes,
           BucketCuts& cuts);
  BucketCuts::Members cut(const std::vector<BucketMember>& list, std::size_t own,
                          BucketSizes sizes) const;
  DType gathered_type(const BucketMember& member) const;
  void in_whole_vectors_first(const std::vector<BucketMember>& list,
                              std::vector<std::size_t>& members) const;
  NodeId finished(const BucketMember& member) const { return graph_.info(member.value()).producer; }

  const Graph& graph_;
  std::map<ValueId, ValueId> parameter_of_;  // by its reduced gradient
  std::set<ValueId> dependents_;
  std::vector<std::vector<BucketMember>> buckets_;
  std::map<ValueId, std::pair<std::size_t, std::size_t>> place_;
};

}  // namespace lockstep
