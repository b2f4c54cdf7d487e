#include "lockstep/distribute/bucket_list.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/distribute/gathers.h"
#include "lockstep/graph/ops/collective.h"

namespace lockstep {
namespace {

// Gradients with a multiple of this many elements come first in a bucket, so that those after them
// start on whole vectors and cache lines.
constexpr std::int64_t kWholeVectors = 16;

std::vector<BucketMember> members_of_list(const Node& list) {
  std::vector<BucketMember> members;
  for (std::size_t i = 0; i < list.inputs.size(); ++i) members.push_back({&list, i});
  return members;
}

}  // namespace

GradientBuckets::GradientBuckets(const Graph& graph, BucketSizes sizes, BucketCuts& cuts)
    : graph_(graph) {
  find_parameters();
  find_dependents();
  const std::map<const Node*, const Node*> carried = find_carried();
  // Whatever follows from collectives is numbered after them.
  for (const bool independent : {true, false}) {
    for (const Node& node : graph.nodes()) {
      if (!is_bucket(node) || is_independent(node) != independent) continue;
      if (!carried.contains(&node)) add(node, carried, sizes, cuts);
    }
  }
}

std::optional<std::pair<std::size_t, std::size_t>> GradientBuckets::of(ValueId sum) const {
  const auto found = place_.find(sum);
  return found == place_.end() ? std::nullopt : std::optional(found->second);
}

std::size_t GradientBuckets::that_has(ValueId id) const {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const auto is_its = [&](const BucketMember& m) { return m.value() == id || m.sum() == id; };
    if (std::ranges::any_of(buckets_[b], is_its)) return b;
  }
  fail<InternalError>("[bucket] the norm of a gradient that is not all-reduced");
}

const Variable* GradientBuckets::parameter(const BucketMember& member) const {
  const auto found = parameter_of_.find(member.sum());
  return found == parameter_of_.end() ? nullptr : graph_.producer(found->second).variable.get();
}

ValueId GradientBuckets::parameter_value(const BucketMember& member) const {
  const auto found = parameter_of_.find(member.sum());
  ensure(found != parameter_of_.end(), "[bucket] a gradient has no parameter");
  return found->second;
}

void GradientBuckets::find_parameters() {
  for (const Node& node : graph_.nodes()) {
    if (node.op != Op::Update) continue;
    const auto count = static_cast<std::size_t>(node.attrs.integer("count"));
    for (std::size_t i = kUpdateScalars; i < kUpdateScalars + count; ++i) {
      parameter_of_[node.inputs[i + count]] = node.inputs[i];
    }
  }
}

// Values that depend on the results of a list.
void GradientBuckets::find_dependents() {
  for (const Node& node : graph_.nodes()) {
    const bool follows = is_bucket(node) || std::ranges::any_of(node.inputs, [&](ValueId id) {
                           return dependents_.contains(id);
                         });
    if (follows) dependents_.insert(node.outputs.begin(), node.outputs.end());
  }
}

bool GradientBuckets::is_independent(const Node& list) const {
  return std::ranges::none_of(list.inputs, [&](ValueId id) { return dependents_.contains(id); });
}

// The list with which each value that is marked `aside` is communicated.
std::map<const Node*, const Node*> GradientBuckets::find_carried() const {
  const auto dtype = [&](const Node& list) { return graph_.type(list.inputs[0]).dtype; };
  std::map<const Node*, const Node*> carried;
  for (const Node& list : graph_.nodes()) {
    if (!is_bucket(list) || is_aside(list) || !is_independent(list)) continue;
    for (const Node& other : graph_.nodes()) {
      const bool joins = is_aside(other) && is_independent(other) && dtype(other) == dtype(list);
      if (joins) carried.emplace(&other, &list);
    }
  }
  return carried;
}

void GradientBuckets::add(const Node& node, const std::map<const Node*, const Node*>& carried,
                          BucketSizes sizes, BucketCuts& cuts) {
  std::vector<BucketMember> list = members_of_list(node);
  const std::size_t own = list.size();
  for (const Node& other : graph_.nodes()) {
    const auto found = carried.find(&other);
    if (found == carried.end() || found->second != &node) continue;
    std::ranges::copy(members_of_list(other), std::back_inserter(list));
  }
  BucketCuts::Names names;
  for (const BucketMember& member : list) {
    const Variable* const of = parameter(member);
    names.push_back(of == nullptr ? "" : of->name);
  }
  const BucketCuts::Members* known = cuts.find(names);
  if (known == nullptr) known = &cuts.remember(std::move(names), cut(list, own, sizes));
  for (const std::vector<std::size_t>& some : *known) {
    std::vector<BucketMember> bucket;
    for (std::size_t i : some) {
      place_[list[i].sum()] = {buckets_.size(), bucket.size()};
      bucket.push_back(list[i]);
    }
    buckets_.push_back(std::move(bucket));
  }
}

// The first `own` members of a list by size, in the order in which they are finished; then the
// others. In a bucket, gradients come before other values, so that those of an update are
// contiguous. Parameters that are gathered in different types are in different buckets.
BucketCuts::Members GradientBuckets::cut(const std::vector<BucketMember>& list, std::size_t own,
                                         BucketSizes sizes) const {
  std::map<DType, std::vector<std::size_t>> by_type;
  for (std::size_t i = 0; i < own; ++i) by_type[gathered_type(list[i])].push_back(i);
  std::vector<std::pair<NodeId, std::vector<std::size_t>>> buckets;  // and when they are finished
  for (auto& [dtype, order] : by_type) {
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return finished(list[i]); });
    std::vector<std::size_t> bytes;
    for (std::size_t i : order) bytes.push_back(graph_.bytes(list[i].value()));
    std::size_t begin = 0;
    for (std::size_t end : cut_into_buckets(bytes, sizes)) {
      std::vector<std::size_t> members(order.begin() + static_cast<std::ptrdiff_t>(begin),
                                       order.begin() + static_cast<std::ptrdiff_t>(end));
      const NodeId last = finished(list[members.back()]);
      in_whole_vectors_first(list, members);
      buckets.emplace_back(last, std::move(members));
      begin = end;
    }
  }
  std::ranges::stable_sort(buckets, {}, [](const auto& bucket) { return bucket.first; });
  for (std::size_t i = own; i < list.size(); ++i) {
    const auto first = std::ranges::lower_bound(buckets, finished(list[i]), {},
                                                [](const auto& bucket) { return bucket.first; });
    (first == buckets.end() ? buckets.back() : *first).second.push_back(i);
  }
  BucketCuts::Members cuts;
  for (auto& [last, members] : buckets) cuts.push_back(std::move(members));
  return cuts;
}

// One for all, unless ranks keep slices of the parameter.
DType GradientBuckets::gathered_type(const BucketMember& member) const {
  const auto parameter = parameter_of_.find(member.sum());
  const bool sliced = parameter != parameter_of_.end() &&
                      graph_.info(parameter->second).placement.on(kDataAxis).is_flat();
  return sliced ? gathered_dtype(graph_, parameter->second) : DType::F32;
}

void GradientBuckets::in_whole_vectors_first(const std::vector<BucketMember>& list,
                                             std::vector<std::size_t>& members) const {
  std::stable_partition(members.begin(), members.end(), [&](std::size_t i) {
    return graph_.type(list[i].value()).shape.elements() % kWholeVectors == 0;
  });
}

}  // namespace lockstep
