#include "lockstep/strategy/distribute.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/collective.h"

namespace lockstep {
namespace {

constexpr std::size_t kScalars = 3;  // inputs of an Update before its parameters
// Sums of so many elements come first in a bucket, so that those behind them start on whole
// vectors and cache lines.
constexpr std::int64_t kWholeVectors = 16;

void take_out_sums(Graph& graph) {
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    if (node.op != Op::AllReduce) {
      rewriter.copy(node);
      continue;
    }
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      rewriter.set(node.outputs[i], rewriter.map(node.inputs[i]));
    }
  }
  graph = rewriter.finish();
}

// A value that is added up over replicas: one of a list.
struct Member {
  const Node* list = nullptr;
  std::size_t place = 0;

  ValueId value() const { return list->inputs[place]; }
  ValueId sum() const { return list->outputs[place]; }
};

// Members that travel together.
struct Bucket {
  std::vector<Member> members;
};

// The lists of a graph, cut. A list of gradients takes with it what is added up aside, each value
// in the first bucket that is not finished before it.
class Buckets {
 public:
  Buckets(const Graph& graph, BucketSizes sizes, BucketMemory& memory) : graph_(graph) {
    find_parameters();
    find_dependents();
    const std::map<const Node*, const Node*> carried = find_carried();
    // What follows from sums is numbered behind them.
    for (const bool independent : {true, false}) {
      for (const Node& node : graph.nodes()) {
        if (!is_bucket(node) || is_independent(node) != independent) continue;
        if (!carried.contains(&node)) add(node, carried, sizes, memory);
      }
    }
  }

  const std::vector<Bucket>& all() const { return buckets_; }
  // The bucket that a value of the graph comes out of, and its turn in it; none for others.
  std::optional<std::pair<std::size_t, std::size_t>> of(ValueId sum) const {
    const auto found = place_.find(sum);
    return found == place_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  static std::vector<Member> members_of(const Node& list) {
    std::vector<Member> members;
    for (std::size_t i = 0; i < list.inputs.size(); ++i) members.push_back({&list, i});
    return members;
  }

  void find_parameters() {
    for (const Node& node : graph_.nodes()) {
      if (node.op != Op::Update) continue;
      const auto count = static_cast<std::size_t>(node.attrs.integer("count"));
      for (std::size_t i = kScalars; i < kScalars + count; ++i) {
        parameter_of_[node.inputs[i + count]] = graph_.producer(node.inputs[i]).variable.get();
      }
    }
  }

  // Values that follow from the sums of a list.
  void find_dependents() {
    for (const Node& node : graph_.nodes()) {
      const bool follows = is_bucket(node) || std::ranges::any_of(node.inputs, [&](ValueId id) {
                             return dependents_.contains(id);
                           });
      if (follows) dependents_.insert(node.outputs.begin(), node.outputs.end());
    }
  }

  const Variable* parameter(const Member& member) const {
    const auto found = parameter_of_.find(member.sum());
    return found == parameter_of_.end() ? nullptr : found->second;
  }

  bool is_independent(const Node& list) const {
    return std::ranges::none_of(list.inputs, [&](ValueId id) { return dependents_.contains(id); });
  }

  // The list that each one which is added up aside travels with.
  std::map<const Node*, const Node*> find_carried() const {
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

  void add(const Node& node, const std::map<const Node*, const Node*>& carried, BucketSizes sizes,
           BucketMemory& memory) {
    std::vector<Member> list = members_of(node);
    const std::size_t own = list.size();
    for (const Node& other : graph_.nodes()) {
      const auto found = carried.find(&other);
      if (found == carried.end() || found->second != &node) continue;
      std::ranges::copy(members_of(other), std::back_inserter(list));
    }
    BucketMemory::Parameters parameters;
    for (const Member& member : list) parameters.push_back(parameter(member));
    const BucketMemory::Members* known = memory.find(parameters);
    if (known == nullptr) known = &memory.remember(std::move(parameters), cut(list, own, sizes));
    for (const std::vector<std::size_t>& some : *known) {
      Bucket bucket;
      for (std::size_t i : some) {
        place_[list[i].sum()] = {buckets_.size(), bucket.members.size()};
        bucket.members.push_back(list[i]);
      }
      buckets_.push_back(std::move(bucket));
    }
  }

  // The first `own` members of a list by size, in the order in which they are finished; then the
  // others. In a bucket gradients stand before what is none, so that an update finds its own side
  // by side.
  BucketMemory::Members cut(const std::vector<Member>& list, std::size_t own,
                            BucketSizes sizes) const {
    std::vector<std::size_t> order(own);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return finished(list[i]); });
    std::vector<std::size_t> bytes;
    for (std::size_t i : order) bytes.push_back(graph_.bytes(list[i].value()));
    BucketMemory::Members buckets;
    std::vector<NodeId> ends;
    std::size_t begin = 0;
    for (std::size_t end : cut_into_buckets(bytes, sizes)) {
      std::vector<std::size_t>& members =
          buckets.emplace_back(order.begin() + static_cast<std::ptrdiff_t>(begin),
                               order.begin() + static_cast<std::ptrdiff_t>(end));
      ends.push_back(finished(list[members.back()]));
      in_whole_vectors_first(list, members);
      begin = end;
    }
    for (std::size_t i = own; i < list.size(); ++i) {
      const auto first = std::ranges::lower_bound(ends, finished(list[i]));
      buckets[static_cast<std::size_t>(std::min(first - ends.begin(), std::ssize(ends) - 1))]
          .push_back(i);
    }
    return buckets;
  }

  void in_whole_vectors_first(const std::vector<Member>& list,
                              std::vector<std::size_t>& members) const {
    std::stable_partition(members.begin(), members.end(), [&](std::size_t i) {
      return graph_.type(list[i].value()).shape.elements() % kWholeVectors == 0;
    });
  }

  NodeId finished(const Member& member) const { return graph_.info(member.value()).producer; }

  const Graph& graph_;
  std::map<ValueId, const Variable*> parameter_of_;  // by the sum of its gradients
  std::set<ValueId> dependents_;
  std::vector<Bucket> buckets_;
  std::map<ValueId, std::pair<std::size_t, std::size_t>> place_;
};

class Distribution {
 public:
  Distribution(const Graph& graph, BucketSizes sizes, BucketMemory& memory)
      : graph_(graph), buckets_(graph, sizes, memory), rewriter_(graph) {}

  // What reads a sum that travels with later values is written behind it.
  Graph run() {
    for (std::size_t b = 0; b < buckets_.all().size(); ++b) {
      std::set<ValueId>& missing = missing_.emplace_back();
      for (const Member& member : buckets_.all()[b].members) missing.insert(member.value());
      for (ValueId id : missing) waiting_[id].push_back(b);
    }
    for (NodeId n = 0; n < static_cast<NodeId>(graph_.nodes().size()); ++n) {
      const Node& node = graph_.node(n);
      if (is_bucket(node)) continue;
      if (node.op == Op::AllReduce) number_[n] = number_.size();
      write_or_postpone(n);
    }
    ensure(postponed_.empty(), "a sum over replicas is waited for by what it adds up");
    return rewriter_.finish();
  }

 private:
  static Attrs numbered(Attrs attrs, std::size_t order) {
    attrs.set("order", static_cast<std::int64_t>(order));
    return attrs;
  }

  void write_or_postpone(NodeId n) {
    const Node& node = graph_.node(n);
    if (!std::ranges::all_of(node.inputs, [&](ValueId id) { return rewriter_.knows(id); })) {
      postponed_.push_back(n);
      return;
    }
    if (node.op == Op::Update) {
      write_updates(node);
    } else if (node.op == Op::AllReduce) {
      rewriter_.copy_as(node, rewriter_.map(node.inputs), numbered(node.attrs, number_.at(n)));
    } else {
      rewriter_.copy(node);
    }
    for (ValueId id : node.outputs) write_sums_of(id);
  }

  // The sums of the buckets for which this value was the last.
  void write_sums_of(ValueId id) {
    const auto waiting = waiting_.find(id);
    if (waiting == waiting_.end()) return;
    for (std::size_t b : waiting->second) {
      missing_[b].erase(id);
      if (missing_[b].empty()) write_sums(b);
    }
  }

  void write_sums(std::size_t b) {
    const Bucket& bucket = buckets_.all()[b];
    const Node& list = *bucket.members.front().list;
    std::vector<Value> values;
    for (const Member& member : bucket.members) values.push_back(rewriter_.map(member.value()));
    std::vector<Value> sums;
    {
      const Graph::NameScope scope(rewriter_.target(), list.name);
      sums = rewriter_.target().add(Op::AllReduce, values, numbered(list.attrs, b));
    }
    for (std::size_t turn = 0; turn < sums.size(); ++turn) {
      rewriter_.set(bucket.members[turn].sum(), sums[turn]);
    }
    for (const Member& member : bucket.members) write_sums_of(member.sum());
    for (NodeId n : std::exchange(postponed_, {})) write_or_postpone(n);
  }

  // An Update a bucket; one more for parameters whose gradients come from elsewhere.
  void write_updates(const Node& node) {
    const auto count = static_cast<std::size_t>(node.attrs.integer("count"));
    const std::size_t lists = (node.inputs.size() - kScalars) / count;
    std::map<std::size_t, std::vector<std::pair<std::size_t, std::size_t>>> parts;
    for (std::size_t i = 0; i < count; ++i) {
      const auto place = buckets_.of(node.inputs[kScalars + count + i]);
      parts[place ? place->first : buckets_.all().size()].emplace_back(place ? place->second : i,
                                                                       i);
    }
    for (auto& [bucket, members] : parts) {
      std::ranges::sort(members);
      std::vector<Value> inputs;
      for (std::size_t i = 0; i < kScalars; ++i) inputs.push_back(rewriter_.map(node.inputs[i]));
      for (std::size_t list = 0; list < lists; ++list) {
        for (const auto& [turn, i] : members) {
          inputs.push_back(rewriter_.map(node.inputs[kScalars + list * count + i]));
        }
      }
      Attrs attrs = node.attrs;
      attrs.set("count", static_cast<std::int64_t>(members.size()));
      const Graph::NameScope scope(rewriter_.target(), node.name);
      rewriter_.target().add(Op::Update, inputs, std::move(attrs));
    }
  }

  const Graph& graph_;
  Buckets buckets_;
  Rewriter rewriter_;
  std::vector<std::set<ValueId>> missing_;               // values of a bucket, still to come
  std::map<ValueId, std::vector<std::size_t>> waiting_;  // buckets, by what they wait for
  std::vector<NodeId> postponed_;                        // nodes that read sums which are to come
  std::map<NodeId, std::size_t> number_;                 // of sums that are no buckets
};

}  // namespace

const BucketMemory::Members* BucketMemory::find(const Parameters& parameters) const {
  const auto found = known_.find(parameters);
  return found == known_.end() ? nullptr : &found->second;
}

const BucketMemory::Members& BucketMemory::remember(Parameters parameters, Members members) {
  return known_.insert_or_assign(std::move(parameters), std::move(members)).first->second;
}

void Distribute::run(Graph& graph) {
  ensure(options_.replicas > 0, "a step is distributed over {} replicas", options_.replicas);
  if (options_.replicas == 1) {
    take_out_sums(graph);
  } else {
    BucketMemory own;
    BucketMemory& memory = options_.memory != nullptr ? *options_.memory : own;
    graph = Distribution(graph, options_.buckets, memory).run();
  }
}

}  // namespace lockstep
