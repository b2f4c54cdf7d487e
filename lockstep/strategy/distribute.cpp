#include "lockstep/strategy/distribute.h"

#include <algorithm>
#include <map>
#include <optional>

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

// Members of one list of gradients that travel together, by their places in the list.
struct Bucket {
  const Node* list = nullptr;
  std::vector<std::size_t> members;
  NodeId last_producer = -1;
};

class Buckets {
 public:
  Buckets(const Graph& graph, BucketSizes sizes, BucketMemory& memory) : graph_(graph) {
    std::map<ValueId, const Variable*> parameter_of;
    for (const Node& node : graph.nodes()) {
      if (node.op != Op::Update) continue;
      const auto count = static_cast<std::size_t>(node.attrs.integer("count"));
      for (std::size_t i = kScalars; i < kScalars + count; ++i) {
        parameter_of[node.inputs[i + count]] = graph.producer(node.inputs[i]).variable.get();
      }
    }
    for (const Node& node : graph.nodes()) {
      if (!is_bucket(node)) continue;
      BucketMemory::Parameters parameters;
      for (ValueId id : node.outputs) {
        const auto found = parameter_of.find(id);
        parameters.push_back(found == parameter_of.end() ? nullptr : found->second);
      }
      const BucketMemory::Members* known = memory.find(parameters);
      add(node, known != nullptr ? *known : memory.remember(parameters, cut(node, sizes)));
    }
  }

  const std::vector<Bucket>& all() const { return buckets_; }
  // The bucket that a value of the graph comes out of, and its turn in it; none for others.
  std::optional<std::pair<std::size_t, std::size_t>> of(ValueId sum) const {
    const auto found = place_.find(sum);
    return found == place_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  BucketMemory::Members cut(const Node& list, BucketSizes sizes) const {
    std::vector<std::size_t> order(list.inputs.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return finished(list, i); });
    std::vector<std::size_t> bytes;
    for (std::size_t i : order) bytes.push_back(graph_.bytes(list.inputs[i]));
    BucketMemory::Members buckets;
    std::size_t begin = 0;
    for (std::size_t end : cut_into_buckets(bytes, sizes)) {
      std::vector<std::size_t>& members =
          buckets.emplace_back(order.begin() + static_cast<std::ptrdiff_t>(begin),
                               order.begin() + static_cast<std::ptrdiff_t>(end));
      std::stable_partition(members.begin(), members.end(), [&](std::size_t i) {
        return graph_.type(list.inputs[i]).shape.elements() % kWholeVectors == 0;
      });
      begin = end;
    }
    return buckets;
  }

  void add(const Node& list, const BucketMemory::Members& members) {
    for (const std::vector<std::size_t>& some : members) {
      Bucket bucket{.list = &list, .members = some, .last_producer = -1};
      for (std::size_t turn = 0; turn < some.size(); ++turn) {
        place_[list.outputs[some[turn]]] = {buckets_.size(), turn};
        bucket.last_producer = std::max(bucket.last_producer, finished(list, some[turn]));
      }
      buckets_.push_back(std::move(bucket));
    }
  }

  NodeId finished(const Node& list, std::size_t i) const {
    return graph_.info(list.inputs[i]).producer;
  }

  const Graph& graph_;
  std::vector<Bucket> buckets_;
  std::map<ValueId, std::pair<std::size_t, std::size_t>> place_;
};

class Distribution {
 public:
  Distribution(const Graph& graph, BucketSizes sizes, BucketMemory& memory)
      : graph_(graph), buckets_(graph, sizes, memory), rewriter_(graph) {}

  Graph run() {
    for (NodeId n = 0; n < static_cast<NodeId>(graph_.nodes().size()); ++n) {
      const Node& node = graph_.node(n);
      if (node.op == Op::Update) {
        write_updates(node);
      } else if (node.op != Op::AllReduce) {
        rewriter_.copy(node);
      } else if (!is_bucket(node)) {
        rewriter_.copy_as(node, rewriter_.map(node.inputs), numbered(node.attrs, waited_for_++));
      }
      for (std::size_t b = 0; b < buckets_.all().size(); ++b) {
        if (buckets_.all()[b].last_producer == n) write_sums(b);
      }
    }
    return rewriter_.finish();
  }

 private:
  static Attrs numbered(Attrs attrs, std::size_t order) {
    attrs.set("order", static_cast<std::int64_t>(order));
    return attrs;
  }

  void write_sums(std::size_t b) {
    const Bucket& bucket = buckets_.all()[b];
    std::vector<Value> values;
    for (std::size_t i : bucket.members) values.push_back(rewriter_.map(bucket.list->inputs[i]));
    const Graph::NameScope scope(rewriter_.target(), bucket.list->name);
    const std::vector<Value> sums =
        rewriter_.target().add(Op::AllReduce, values, numbered(bucket.list->attrs, b));
    for (std::size_t turn = 0; turn < sums.size(); ++turn) {
      rewriter_.set(bucket.list->outputs[bucket.members[turn]], sums[turn]);
    }
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
  std::size_t waited_for_ = 0;  // sums so far that are no buckets
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
