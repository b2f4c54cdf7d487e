#include "lockstep/passes/recompute_lifetimes.h"

#include <algorithm>
#include <functional>

#include "lockstep/autodiff/gradients.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/collective.h"
#include "lockstep/graph/recomputed.h"
#include "lockstep/passes/uses.h"

namespace lockstep {
namespace {

// What devices can compute while they move a byte, roughly: elementwise nodes cost what they move,
// products what they compute.
constexpr double kFlopsPerByte = 10;
// Outputs smaller than this fraction of their node's largest are kept.
constexpr std::size_t kSmallOutput = 64;

bool is_leaf_op(Op op) {
  return op == Op::Input || op == Op::Variable || op == Op::Constant;
}

}  // namespace

RecomputeAnalysis::RecomputeAnalysis(const Graph& graph, const Backend& backend)
    : graph_(graph),
      nodes_(graph.nodes().size()),
      root_(index(graph.value_count())),
      bytes_(root_.size()),
      copied_(root_.size(), false),
      read_late_(root_.size(), false),
      output_(root_.size(), false) {
  for (NodeId n = 0; n < node_count(); ++n) {
    const Node& node = graph.node(n);
    NodeFacts& facts = nodes_[index(n)];
    for (ValueId id : node.outputs) {
      root_[index(id)] = id;
      bytes_[index(id)] = graph.bytes(id);
    }
    facts.leaf = is_leaf_op(node.op);
    facts.fixed = node.op == Op::Variable || node.op == Op::Constant ||
                  (!node.inputs.empty() && std::ranges::all_of(node.inputs, [&](ValueId id) {
                    return fixed(producer(id));
                  }));
    facts.view = op_def(node.op).view &&
                 graph.info(node.inputs[0]).layout == graph.info(node.outputs[0]).layout;
    if (facts.view) root_[index(node.outputs[0])] = root(node.inputs[0]);
    if (facts.leaf || facts.view) continue;
    const Cost cost = cost_of(graph, node);
    facts.work = cost.flops + kFlopsPerByte * cost.bytes;
    facts.workspace = backend.workspace_bytes(graph, node);
    facts.in_place = in_place_pairs(graph, node);
    find_copied(node);
  }
  for (const auto& [name, id] : graph.outputs()) output_[index(root(id))] = true;
  find_backward();
  for (NodeId n = 0; n < node_count(); ++n) {
    const Node& node = graph.node(n);
    NodeFacts& facts = nodes_[index(n)];
    facts.recomputable = !facts.leaf && !facts.backward && !op_def(node.op).effect &&
                         !is_collective(node) && !is_for_ranks(node);
    if (!facts.backward || facts.view) continue;
    for (ValueId id : node.inputs) read_late_[index(root(id))] = true;
  }
  find_groups();
}

void RecomputeAnalysis::find_copied(const Node& node) {
  std::size_t largest = 0;
  for (ValueId id : node.outputs) largest = std::max(largest, bytes(id));
  for (ValueId id : node.outputs) {
    copied_[index(id)] = bytes(id) > 0 && bytes(id) * kSmallOutput >= largest;
  }
}

// The nodes that gradients() wrote, and what later passes put in for them alone: a conversion that
// only they read has the name of what it converts.
void RecomputeAnalysis::find_backward() {
  NodeId first = node_count();
  for (NodeId n = node_count(); n-- > 0;) {
    nodes_[index(n)].backward = !leaf(n) && is_gradient(graph_.node(n));
    if (backward(n)) first = n;
  }
  has_backward_ = first < node_count();
  const Uses uses(graph_);
  for (NodeId n = node_count(); n-- > first;) {
    if (backward(n) || leaf(n)) continue;
    bool read = false;
    bool only_late = true;
    for (ValueId id : graph_.node(n).outputs) {
      for (NodeId reader : uses.of(id)) {
        read = true;
        only_late = only_late && reader >= 0 && backward(reader);
      }
    }
    nodes_[index(n)].backward = read && only_late;
  }
}

// What the planner makes contiguous lives as one: from the first member's to the last one's use.
void RecomputeAnalysis::find_groups() {
  for (const Node& node : graph_.nodes()) {
    std::span<const ValueId> wanted;
    if (node.op == Op::AllReduce) wanted = node.outputs;
    if (node.op == Op::Update) {
      const auto count = index(node.attrs.integer("count"));
      wanted = std::span(node.inputs).subspan(3 + count, count);
    }
    if (wanted.empty()) continue;
    std::vector<ValueId>& group = groups_.emplace_back();
    for (ValueId id : wanted) group.push_back(root(id));
  }
}

std::vector<bool> RecomputeAnalysis::copied_values(const Selection& selection) const {
  std::vector<bool> again(root_.size(), false);
  for (NodeId n = 0; n < node_count(); ++n) {
    const Node& node = graph_.node(n);
    if (view(n)) {
      again[index(node.outputs[0])] = again[index(node.inputs[0])] && !backward(n);
    } else if (selection[index(n)] && recomputable(n)) {
      for (ValueId id : node.outputs) again[index(id)] = copied(id);
    }
  }
  return again;
}

// The graph's order; copies stand just before the first node of the backward pass that needs them,
// after the copies that they need themselves.
std::vector<OrderedNode> RecomputeAnalysis::order(const std::vector<bool>& again) const {
  std::vector<OrderedNode> order;
  order.reserve(nodes_.size() * 2);
  std::vector<bool> done(nodes_.size(), false);
  const std::function<void(ValueId)> copy = [&](ValueId id) {
    const NodeId n = producer(id);
    if (!again[index(id)] || done[index(n)]) return;
    done[index(n)] = true;
    for (ValueId input : graph_.node(n).inputs) copy(input);
    order.push_back({.node = n, .again = true});
  };
  for (NodeId n = 0; n < node_count(); ++n) {
    if (backward(n)) std::ranges::for_each(graph_.node(n).inputs, copy);
    order.push_back({.node = n, .again = false});
  }
  return order;
}

Graph RecomputeAnalysis::write(const Selection& selection, std::vector<NodeId>* sources) const {
  const std::vector<bool> again = copied_values(selection);
  Rewriter rewriter(graph_);
  std::vector<Value> copies(root_.size());
  for (const OrderedNode& next : order(again)) {
    const Node& node = graph_.node(next.node);
    if (sources != nullptr) sources->push_back(next.node);
    if (!next.again && !backward(next.node)) {
      rewriter.copy(node);
      continue;
    }
    std::vector<Value> inputs;
    for (ValueId id : node.inputs) {
      inputs.push_back(again[index(id)] ? copies[index(id)] : rewriter.map(id));
    }
    if (!next.again) {
      rewriter.copy_as(node, inputs, node.attrs);
      continue;
    }
    const std::vector<Value> originals = rewriter.map(node.outputs);
    Node named = node;
    named.name += kAgain;
    rewriter.copy_as(named, inputs, named.attrs);
    for (std::size_t o = 0; o < node.outputs.size(); ++o) {
      copies[index(node.outputs[o])] = rewriter.map(node.outputs[o]);
      rewriter.set(node.outputs[o], originals[o]);
    }
  }
  return rewriter.finish();
}

// Follows the memory of a step: the values that share it, and how long they live. Copies of values
// have the numbers after those of the originals.
class RecomputeAnalysis::Account {
 public:
  Account(const RecomputeAnalysis& analysis, Lifetimes& result)
      : analysis_(analysis),
        result_(result),
        count_(static_cast<int>(analysis.root_.size())),
        last_(2 * analysis.root_.size(), -1),
        storage_(last_.size(), -1) {}

  void run() {
    find_reads();
    for (int s = 0; s < end(); ++s) assign(s);
    for (const std::vector<ValueId>& group : analysis_.groups_) join(group);
    add_up();
  }

 private:
  struct Storage {
    std::size_t bytes = 0;
    int first = 0;
    int last = 0;
  };
  int end() const { return static_cast<int>(result_.order.size()); }
  const Node& node_at(int s) const { return analysis_.graph_.node(result_.order[index(s)].node); }
  bool late(const OrderedNode& next) const { return next.again || analysis_.backward(next.node); }
  // The memory that a node of the order reads for an input.
  int memory_of(const OrderedNode& reader, ValueId id) const {
    const int root = analysis_.root(id);
    const bool copy =
        result_.of_copy[index(id)] && (late(reader) || analysis_.backward(analysis_.producer(id)));
    return copy ? count_ + root : root;
  }

  void find_reads() {
    result_.first_late_read.assign(index(count_), end());
    result_.last_early_read.assign(index(count_), -1);
    result_.last_read.assign(index(count_), -1);
    for (int s = 0; s < end(); ++s) {
      const OrderedNode& next = result_.order[index(s)];
      if (analysis_.view(next.node)) continue;
      for (ValueId id : node_at(s).inputs) {
        const int memory = memory_of(next, id);
        last_[index(memory)] = s;
        if (memory >= count_) continue;
        result_.last_read[index(memory)] = s;
        if (late(next)) {
          int& first = result_.first_late_read[index(memory)];
          first = std::min(first, s);
        } else {
          result_.last_early_read[index(memory)] = s;
        }
      }
      if (next.again) {
        result_.work += analysis_.work(next.node);
        continue;
      }
      for (ValueId id : node_at(s).outputs) result_.last_early_read[index(id)] = s;
    }
  }

  void assign(int s) {
    const OrderedNode& next = result_.order[index(s)];
    if (analysis_.leaf(next.node) || analysis_.view(next.node)) return;
    const Node& node = node_at(s);
    std::vector<int> taken;
    for (std::size_t o = 0; o < node.outputs.size(); ++o) {
      const ValueId id = node.outputs[o];
      const int memory = next.again ? count_ + id : id;
      int storage = in_place(next, node, o, s);
      if (storage >= 0 && std::ranges::find(taken, storage) != taken.end()) storage = -1;
      if (storage < 0) {
        const bool apart = !next.again && analysis_.output_[index(id)];
        storage = static_cast<int>(storages_.size());
        storages_.push_back({.bytes = apart ? 0 : analysis_.bytes(id), .first = s, .last = s});
      }
      storage_[index(memory)] = storage;
      taken.push_back(storage);
      int& last = storages_[index(storage)].last;
      last = std::max({last, s, last_[index(memory)]});
    }
  }

  // The storage of an input that dies here and in which an output may be computed; -1: none.
  int in_place(const OrderedNode& next, const Node& node, std::size_t output, int s) const {
    const Graph& graph = analysis_.graph_;
    for (const auto& [from, to] : analysis_.nodes_[index(next.node)].in_place) {
      if (index(to) != output) continue;
      const ValueId id = node.inputs[index(from)];
      const int storage = storage_[index(memory_of(next, id))];
      if (storage < 0 || storages_[index(storage)].last != s) continue;
      if (graph.type(id) != graph.type(node.outputs[output])) continue;
      if (graph.info(id).layout == graph.info(node.outputs[output]).layout) return storage;
    }
    return -1;
  }

  void join(const std::vector<ValueId>& group) {
    int first = end();
    int last = -1;
    for (ValueId root : group) {
      const int storage = storage_[index(root)];
      if (storage < 0) continue;
      first = std::min(first, storages_[index(storage)].first);
      last = std::max(last, storages_[index(storage)].last);
    }
    for (ValueId root : group) {
      const int storage = storage_[index(root)];
      if (storage < 0) continue;
      storages_[index(storage)].first = first;
      storages_[index(storage)].last = last;
    }
  }

  void add_up() {
    std::vector<std::ptrdiff_t> change(index(end()) + 1, 0);
    for (const Storage& storage : storages_) {
      change[index(storage.first)] += static_cast<std::ptrdiff_t>(storage.bytes);
      change[index(storage.last) + 1] -= static_cast<std::ptrdiff_t>(storage.bytes);
    }
    std::ptrdiff_t live = 0;
    for (int s = 0; s < end(); ++s) {
      live += change[index(s)];
      const std::size_t bytes =
          static_cast<std::size_t>(live) + analysis_.workspace(result_.order[index(s)].node);
      if (bytes <= result_.peak_bytes) continue;
      result_.peak_bytes = bytes;
      result_.peak_at = s;
    }
  }

  const RecomputeAnalysis& analysis_;
  Lifetimes& result_;
  int count_;
  std::vector<int> last_;     // by memory: where it is read last
  std::vector<int> storage_;  // by memory; -1: a leaf
  std::vector<Storage> storages_;
};

Lifetimes RecomputeAnalysis::lifetimes(const Selection& selection) const {
  Lifetimes result;
  result.again = copied_values(selection);
  result.of_copy = result.again;
  for (NodeId n = 0; n < node_count(); ++n) {
    if (!view(n)) continue;
    const Node& node = graph_.node(n);
    result.of_copy[index(node.outputs[0])] = result.of_copy[index(node.inputs[0])];
  }
  result.order = order(result.again);
  Account(*this, result).run();
  return result;
}

}  // namespace lockstep
