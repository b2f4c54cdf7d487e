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
  Buckets(const Graph& graph, BucketSizes sizes) : graph_(graph) {
    for (const Node& node : graph.nodes()) {
      if (is_bucket(node)) cut(node, sizes);
    }
  }

  const std::vector<Bucket>& all() const { return buckets_; }
  // The bucket that a value of the graph comes out of, and its turn in it; none for others.
  std::optional<std::pair<std::size_t, std::size_t>> of(ValueId sum) const {
    const auto found = place_.find(sum);
    return found == place_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  void cut(const Node& list, BucketSizes sizes) {
    std::vector<std::size_t> order(list.inputs.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    const auto finished = [&](std::size_t i) { return graph_.info(list.inputs[i]).producer; };
    std::ranges::stable_sort(order, {}, finished);
    std::vector<std::size_t> bytes;
    for (std::size_t i : order) bytes.push_back(graph_.bytes(list.inputs[i]));

    std::size_t begin = 0;
    for (std::size_t end : cut_into_buckets(bytes, sizes)) {
      Bucket bucket{.list = &list, .members = {}, .last_producer = -1};
      bucket.members.assign(order.begin() + static_cast<std::ptrdiff_t>(begin),
                            order.begin() + static_cast<std::ptrdiff_t>(end));
      bucket.last_producer = finished(bucket.members.back());
      std::ranges::stable_partition(bucket.members, [&](std::size_t i) {
        return graph_.type(list.inputs[i]).shape.elements() % kWholeVectors == 0;
      });
      for (std::size_t turn = 0; turn < bucket.members.size(); ++turn) {
        place_[list.outputs[bucket.members[turn]]] = {buckets_.size(), turn};
      }
      buckets_.push_back(std::move(bucket));
      begin = end;
    }
  }

  const Graph& graph_;
  std::vector<Bucket> buckets_;
  std::map<ValueId, std::pair<std::size_t, std::size_t>> place_;
};

class Distribution {
 public:
  Distribution(const Graph& graph, BucketSizes sizes)
      : graph_(graph), buckets_(graph, sizes), rewriter_(graph) {}

  Graph run() {
    for (NodeId n = 0; n < static_cast<NodeId>(graph_.nodes().size()); ++n) {
      const Node& node = graph_.node(n);
      if (node.op == Op::Update) {
        write_updates(node);
      } else if (!is_bucket(node)) {
        rewriter_.copy(node);
      }
      for (const Bucket& bucket : buckets_.all()) {
        if (bucket.last_producer == n) write_sums(bucket);
      }
    }
    return rewriter_.finish();
  }

 private:
  void write_sums(const Bucket& bucket) {
    std::vector<Value> values;
    for (std::size_t i : bucket.members) values.push_back(rewriter_.map(bucket.list->inputs[i]));
    const Graph::NameScope scope(rewriter_.target(), bucket.list->name);
    const std::vector<Value> sums = all_reduce_gradients(values);
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
};

}  // namespace

void Distribute::run(Graph& graph) {
  ensure(options_.replicas > 0, "a step is distributed over {} replicas", options_.replicas);
  if (options_.replicas == 1) {
    take_out_sums(graph);
  } else {
    graph = Distribution(graph, options_.buckets).run();
  }
}

}  // namespace lockstep
