// Makes a plan in four steps: an order, the storages (values that share memory), their lifetimes,
// their places.
#include <algorithm>
#include <map>
#include <queue>
#include <set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/collective.h"
#include "lockstep/graph/ops/state.h"
#include "lockstep/plan/arena.h"
#include "lockstep/plan/plan.h"

namespace lockstep {
namespace {

// A value's own memory, shared with its views and with what is computed in its place.
struct Storage {
  std::size_t bytes = 0;
  int first = 0;              // step that writes it first
  int last = 0;               // step that reads it last
  bool pinned = false;        // an input: kept whole for the step
  int group = -1;             // storages of one group lie side by side
  bool communicated = false;  // a step of the communication stream touches it
};

class Planner {
 public:
  Planner(Graph graph, const Backend& backend) : backend_(backend) {
    plan_.graph = std::move(graph);
    storage_of_.assign(static_cast<std::size_t>(plan_.graph.value_count()), -1);
    root_.resize(storage_of_.size());
    stream_.assign(plan_.graph.nodes().size(), kComputeStream);
  }

  Plan run() {
    find_roots();
    order_nodes();
    find_last_uses();
    assign_storages();
    keep_for_communication();
    for (const Node& node : graph().nodes()) group_side_by_side(node);
    place();
    return std::move(plan_);
  }

 private:
  const Graph& graph() const { return plan_.graph; }
  static bool is_leaf(const Node& node) {
    return node.op == Op::Input || node.op == Op::Variable || node.op == Op::Constant;
  }
  bool is_view(const Node& node) const {
    return op_def(node.op).view &&
           graph().info(node.inputs[0]).layout == graph().info(node.outputs[0]).layout;
  }

  // root_[v]: the value whose memory v looks at.
  void find_roots() {
    for (const Node& node : graph().nodes()) {
      for (ValueId id : node.outputs) root_[index(id)] = id;
      if (is_view(node)) root_[index(node.outputs[0])] = root_[index(node.inputs[0])];
    }
  }

  // The graph's order, with nodes that change a variable behind all others that read it.
  void order_nodes() {
    const std::vector<Node>& nodes = graph().nodes();
    std::vector<std::vector<int>> after(nodes.size());
    std::vector<int> waiting(nodes.size(), 0);
    const auto edge = [&](int from, int to) {
      after[static_cast<std::size_t>(from)].push_back(to);
      ++waiting[static_cast<std::size_t>(to)];
    };
    std::map<ValueId, std::vector<int>> readers;  // by root
    for (int n = 0; n < static_cast<int>(nodes.size()); ++n) {
      for (ValueId id : nodes[static_cast<std::size_t>(n)].inputs) {
        edge(graph().info(id).producer, n);
        readers[root_[index(id)]].push_back(n);
      }
    }
    chain_sums(edge);
    std::set<ValueId> changed;
    for (int n = 0; n < static_cast<int>(nodes.size()); ++n) {
      for (ValueId id : changed_variables(nodes[static_cast<std::size_t>(n)])) {
        ensure(graph().producer(id).op == Op::Variable,
               "[plan] {} changes {}, which is no variable",
               nodes[static_cast<std::size_t>(n)].name, graph().producer(id).name);
        require(changed.insert(id).second, "[plan] variable {} is changed by two nodes of a step",
                graph().producer(id).name);
        for (int reader : readers[id]) {
          if (reader != n) edge(reader, n);
        }
      }
    }
    // Assignments come behind all else, so that an error in a step's data (a label out of range)
    // finds the variables as they were. What the communication stream can do comes first: it has
    // the rest of the step to run beside.
    enum class Rank { Leaf, Communication, Compute, Assign };
    using Turn = std::pair<Rank, int>;
    std::priority_queue<Turn, std::vector<Turn>, std::greater<>> ready;
    const auto rank_of = [&](const Node& node, int stream) {
      if (is_leaf(node)) return Rank::Leaf;
      if (is_assignment(node)) return Rank::Assign;
      return stream == kCommunicationStream ? Rank::Communication : Rank::Compute;
    };
    const auto make_ready = [&](int n) {
      const Node& node = nodes[index(n)];
      if (!is_leaf(node)) stream_[index(n)] = stream_of(node);
      ready.emplace(rank_of(node, stream_[index(n)]), n);
    };
    for (int n = 0; n < static_cast<int>(nodes.size()); ++n) {
      if (waiting[static_cast<std::size_t>(n)] == 0) make_ready(n);
    }
    std::size_t done = 0;
    while (!ready.empty()) {
      const int n = ready.top().second;
      ready.pop();
      ++done;
      const Node& node = nodes[static_cast<std::size_t>(n)];
      if (!is_leaf(node) && !is_view(node)) {
        PlanStep step;
        step.node = n;
        step.stream = stream_[index(n)];
        if (is_assignment(node) && last_communication_ >= 0) {
          step.waits.push_back(last_communication_);
        }
        if (step.stream == kCommunicationStream) last_communication_ = step_count();
        step.workspace_bytes = backend_.workspace_bytes(graph(), node);
        step.cost = cost_of(graph(), node);
        plan_.steps.push_back(std::move(step));
      }
      for (int next : after[static_cast<std::size_t>(n)]) {
        if (--waiting[static_cast<std::size_t>(next)] == 0) make_ready(next);
      }
    }
    ensure(done == nodes.size(),
           "[plan] two nodes each change a variable that the other one reads");
  }

  // Replicas must all start the sums of a stream in one order, that of their numbers, whatever else
  // differs between their graphs.
  template <class Edge>
  void chain_sums(const Edge& edge) const {
    std::map<std::pair<bool, std::int64_t>, int> numbered;
    const std::vector<Node>& nodes = graph().nodes();
    for (int n = 0; n < static_cast<int>(nodes.size()); ++n) {
      const Node& node = nodes[index(n)];
      if (node.op != Op::AllReduce || !node.attrs.has("order")) continue;
      numbered[{is_bucket(node), node.attrs.integer("order")}] = n;
    }
    for (auto next = numbered.begin(), last = next; next != numbered.end(); last = next++) {
      if (next != last && next->first.first == last->first.first) edge(last->second, next->second);
    }
  }

  // Gradients are added up on a stream of their own, and so is all that follows from them: the
  // update of a bucket begins when its sums are there, while the backward pass goes on. Assignments
  // come behind everything, on the first stream.
  int stream_of(const Node& node) const {
    if (is_bucket(node)) return kCommunicationStream;
    if (is_assignment(node)) return kComputeStream;
    const bool follows = std::ranges::any_of(node.inputs, [&](ValueId id) {
      return stream_[index(graph().info(root_[index(id)]).producer)] == kCommunicationStream;
    });
    return follows ? kCommunicationStream : kComputeStream;
  }

  void find_last_uses() {
    last_use_.assign(storage_of_.size(), -1);
    for (int s = 0; s < step_count(); ++s) {
      for (ValueId id : node_of(s).inputs) last_use_[index(root_[index(id)])] = s;
    }
    for (const auto& [name, id] : graph().outputs()) {
      last_use_[index(root_[index(id)])] = step_count();
    }
  }

  void assign_storages() {
    for (const Node& node : graph().nodes()) {
      if (node.op != Op::Input) continue;
      const ValueId id = node.outputs[0];
      storage_of_[index(id)] = new_storage(id, -1);
      storages_.back().pinned = true;
      storages_.back().last = step_count();
    }
    for (int s = 0; s < step_count(); ++s) {
      const Node& node = node_of(s);
      const std::vector<std::pair<int, int>> pairs = in_place_pairs(graph(), node);
      std::set<int> taken;  // storages that an output of this node has already
      for (std::size_t o = 0; o < node.outputs.size(); ++o) {
        const int storage = reusable(node, o, s, pairs, taken);
        const ValueId id = node.outputs[o];
        storage_of_[index(id)] = storage >= 0 ? storage : new_storage(id, s);
        taken.insert(storage_of_[index(id)]);
        Storage& chosen = storages_[index(storage_of_[index(id)])];
        chosen.last = std::max({chosen.last, s, last_use_[index(id)]});
      }
      if (plan_.steps[index(s)].stream == kCommunicationStream) mark_communicated(node);
    }
  }

  void mark_communicated(const Node& node) {
    for (const auto* ids : {&node.inputs, &node.outputs}) {
      for (ValueId id : *ids) {
        const int storage = storage_of_[index(root_[index(id)])];
        if (storage >= 0) storages_[index(storage)].communicated = true;
      }
    }
  }

  // A step of the communication stream may run at any time behind its place in the order, up to the
  // end: what it touches is kept for as long.
  void keep_for_communication() {
    for (Storage& storage : storages_) {
      if (storage.communicated) storage.last = step_count();
    }
  }

  // The storage of an input that dies here and that output `o` may be computed in; -1: none.
  int reusable(const Node& node, std::size_t o, int s,
               const std::vector<std::pair<int, int>>& pairs, const std::set<int>& taken) const {
    for (const auto& [from, to] : pairs) {
      if (index(to) != o || index(from) >= node.inputs.size()) continue;
      const ValueId input = node.inputs[index(from)];
      const ValueId root = root_[index(input)];
      const int storage = storage_of_[index(root)];
      if (storage < 0 || taken.contains(storage)) continue;
      const Storage& candidate = storages_[index(storage)];
      const bool whole = graph().bytes(input) == graph().bytes(node.outputs[o]) &&
                         graph().bytes(input) == candidate.bytes;
      const bool dies = candidate.last == s && !candidate.pinned &&
                        (!candidate.communicated || stream_of(node) == kCommunicationStream);
      const bool alike = graph().type(input) == graph().type(node.outputs[o]) &&
                         graph().info(input).layout == graph().info(node.outputs[o]).layout;
      const auto uses = std::count_if(node.inputs.begin(), node.inputs.end(), [&](ValueId id) {
        return storage_of_[index(root_[index(id)])] == storage;
      });
      if (whole && dies && alike && uses == 1) return storage;
    }
    return -1;
  }

  int new_storage(ValueId id, int step) {
    Storage storage;
    storage.bytes = graph().bytes(id);
    storage.first = storage.last = step;
    storages_.push_back(storage);
    return static_cast<int>(storages_.size()) - 1;
  }

  // Gives what a node wants in one piece (the sums of a bucket, the gradients of an update) memory
  // side by side, in its order, where it does not lie so already.
  void group_side_by_side(const Node& node) {
    std::span<const ValueId> wanted;
    if (node.op == Op::AllReduce) wanted = node.outputs;
    if (node.op == Op::Update) {
      const auto count = static_cast<std::size_t>(node.attrs.integer("count"));
      wanted = std::span(node.inputs).subspan(3 + count, count);
    }
    std::vector<int> members;
    for (ValueId id : wanted) {
      const int storage = storage_of_[index(root_[index(id)])];
      const bool whole = storage >= 0 && storages_[index(storage)].bytes == graph().bytes(id);
      if (!whole || storages_[index(storage)].group >= 0 || storages_[index(storage)].pinned) {
        continue;
      }
      storages_[index(storage)].group = static_cast<int>(groups_.size());
      members.push_back(storage);
    }
    if (!members.empty()) groups_.push_back(std::move(members));
  }

  // Hands lifetimes and sizes to the arena, groups as one block each, and reads the places back.
  void place() {
    std::vector<ArenaBlock> blocks;
    std::vector<std::pair<std::size_t, std::size_t>> where(
        storages_.size());  // block, offset in it
    for (const std::vector<int>& members : groups_) {
      ArenaBlock block{.bytes = 0, .first = step_count(), .last = 0};
      for (int member : members) {
        const Storage& storage = storages_[index(member)];
        where[index(member)] = {blocks.size(), block.bytes};
        block.bytes += storage.bytes;
        block.first = std::min(block.first, storage.first);
        block.last = std::max(block.last, storage.last);
      }
      blocks.push_back(block);
    }
    for (std::size_t s = 0; s < storages_.size(); ++s) {
      if (storages_[s].group >= 0) continue;
      where[s] = {blocks.size(), 0};
      blocks.push_back({storages_[s].bytes, storages_[s].first, storages_[s].last});
    }
    std::vector<std::size_t> workspaces;
    for (int s = 0; s < step_count(); ++s) {
      workspaces.push_back(blocks.size());
      const std::size_t bytes = plan_.steps[index(s)].workspace_bytes;
      const bool communication = plan_.steps[index(s)].stream == kCommunicationStream;
      if (bytes > 0) blocks.push_back({bytes, s, communication ? step_count() : s});
    }

    const Arena arena = place_blocks(blocks);
    plan_.arena_bytes = arena.bytes;
    plan_.live_bytes = arena.live_bytes;
    for (int s = 0; s < step_count(); ++s) {
      PlanStep& step = plan_.steps[index(s)];
      if (step.workspace_bytes > 0) step.workspace_offset = arena.offsets[workspaces[index(s)]];
    }
    plan_.values.resize(storage_of_.size());
    for (const Node& node : graph().nodes()) {
      for (ValueId id : node.outputs) {
        Allocation& allocation = plan_.values[index(id)];
        const ValueId root = root_[index(id)];
        allocation.bytes = graph().bytes(id);
        const int storage = storage_of_[index(root)];
        if (storage >= 0) {
          const auto [block, offset] = where[index(storage)];
          allocation.offset = arena.offsets[block] + offset;
        } else {
          allocation.place =
              graph().producer(root).op == Op::Variable ? Place::Variable : Place::Constant;
          if (id == root) {
            (allocation.place == Place::Variable ? plan_.variable_bytes : plan_.constant_bytes) +=
                allocation.bytes;
          }
        }
      }
    }
  }

  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  int step_count() const { return static_cast<int>(plan_.steps.size()); }
  const Node& node_of(int step) const { return graph().node(plan_.steps[index(step)].node); }

  const Backend& backend_;
  Plan plan_;
  std::vector<ValueId> root_;
  std::vector<int> stream_;      // by NodeId
  int last_communication_ = -1;  // the last step of the communication stream so far
  std::vector<int> storage_of_;  // by ValueId of a root; -1: a variable or constant
  std::vector<int> last_use_;    // by ValueId of a root
  std::vector<Storage> storages_;
  std::vector<std::vector<int>> groups_;
};

}  // namespace

Plan make_plan(Graph graph, const Backend& backend) {
  verify(graph);
  return Planner(std::move(graph), backend).run();
}

}  // namespace lockstep
