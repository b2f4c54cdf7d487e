// Makes a plan in four phases: an order, the storages (values that share memory), their lifetimes,
// their offsets. With buckets, lifetimes depend on where the compute stream waits for them
// (release.h): offsets are searched for both with and without such waits.
#include <algorithm>
#include <map>
#include <queue>
#include <set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/collective.h"
#include "lockstep/graph/ops/state.h"
#include "lockstep/graph/ops/update.h"
#include "lockstep/plan/arena.h"
#include "lockstep/plan/node_dependencies.h"
#include "lockstep/plan/plan.h"
#include "lockstep/plan/release.h"
#include "lockstep/plan/slices_in_place.h"

namespace lockstep {
namespace {

// A value's memory, shared with its views and with what is computed in place.
struct Storage {
  std::size_t bytes = 0;
  int first = 0;          // instruction that writes it first
  int last = 0;           // instruction that reads it last
  bool pinned = false;    // an input: never written over
  bool output = false;    // of the step; like inputs, it is kept outside the arena
  int group = -1;         // storages of one group are contiguous
  int communicated = -1;  // the last instruction of the communication stream that touches it
  Place place = Place::Arena;
  std::size_t offset = 0;  // there
};

class Planner {
 public:
  Planner(Graph graph, const Backend& backend) : backend_(backend) {
    plan_.graph = std::move(graph);
    storage_of_.assign(static_cast<std::size_t>(plan_.graph.value_count()), -1);
    root_.resize(storage_of_.size());
    maker_.resize(storage_of_.size());
    shift_.assign(storage_of_.size(), 0);
    in_place_ = find_slices_in_place(plan_.graph);
    stream_.assign(plan_.graph.nodes().size(), kComputeStream);
  }

  Plan run() {
    find_roots();
    order_nodes();
    find_last_uses();
    assign_storages();
    mark_outputs();
    for (const Node& node : graph().nodes()) group_side_by_side(node);
    for (int s = 0; s < instruction_count(); ++s) drop_workspace(s);
    collect_blocks();
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

  // root_[v]: the value whose memory v refers to, which begins at shift_[v] bytes there; maker_[v]:
  // the node that computes v, which v may be a view of.
  void find_roots() {
    for (const Node& node : graph().nodes()) {
      for (ValueId id : node.outputs) {
        root_[index(id)] = id;
        maker_[index(id)] = graph().info(id).producer;
        const auto part = in_place_.parts.find(id);
        if (part == in_place_.parts.end()) continue;
        root_[index(id)] = root_[index(part->second.whole)];
        shift_[index(id)] = shift_[index(part->second.whole)] + part->second.begin;
      }
      if (!is_view(node)) continue;
      root_[index(node.outputs[0])] = root_[index(node.inputs[0])];
      shift_[index(node.outputs[0])] = shift_[index(node.inputs[0])];
      maker_[index(node.outputs[0])] = maker_[index(node.inputs[0])];
    }
  }

  // The graph's order, with nodes that change a variable after all others that read it.
  void order_nodes() {
    const std::vector<Node>& nodes = graph().nodes();
    auto [after, waiting] = dependencies_of(graph(), root_, in_place_);
    // Assignments come last, so that an error in a step's data (a label out of range) leaves the
    // variables unchanged. What can run on the communication stream comes first: it can then
    // overlap the rest of the step. Before it comes what reads a bucket that is then reduced in
    // place.
    enum class Rank { Leaf, Norm, Communication, Compute, Assign };
    using Turn = std::pair<Rank, int>;
    std::priority_queue<Turn, std::vector<Turn>, std::greater<>> ready;
    const auto rank_of = [&](const Node& node, int stream) {
      if (is_leaf(node)) return Rank::Leaf;
      if (is_assignment(node)) return Rank::Assign;
      if (node.op == Op::GlobalNorm && node.attrs.has(kByBucket)) return Rank::Norm;
      if (is_prefetched(node)) return Rank::Compute;  // where it is in the graph's order
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
        Instruction instruction;
        instruction.node = n;
        instruction.stream = stream_[index(n)];
        if (is_assignment(node) && last_communication_ >= 0) {
          instruction.waits.push_back(last_communication_);
        }
        if (instruction.stream == kComputeStream) wait_for_prefetched(node, instruction);
        if (instruction.stream == kCommunicationStream) last_communication_ = instruction_count();
        if (is_prefetched(node)) prefetched_[n] = instruction_count();
        instruction.workspace_bytes = backend_.workspace_bytes(graph(), node);
        for (ValueId id : staged_slots(node)) instruction.staging_bytes += graph().bytes(id);
        instruction.cost = cost_of(graph(), node);
        plan_.instructions.push_back(std::move(instruction));
      }
      for (int next : after[static_cast<std::size_t>(n)]) {
        if (--waiting[static_cast<std::size_t>(next)] == 0) make_ready(next);
      }
    }
    ensure(done == nodes.size(),
           "[plan] two nodes each change a variable that the other one reads");
  }

  // The first one that reads what was prefetched waits for it.
  void wait_for_prefetched(const Node& node, Instruction& instruction) {
    for (ValueId id : node.inputs) {
      const auto found = prefetched_.find(maker_[index(id)]);
      if (found == prefetched_.end() || found->second <= awaited_) continue;
      instruction.waits.push_back(found->second);
    }
    for (int awaited : instruction.waits) awaited_ = std::max(awaited_, awaited);
  }

  // Gradients are all-reduced on a stream of their own, and whatever depends on them runs there
  // too: the update of a bucket starts as soon as it is reduced, while the backward pass continues.
  // What is prefetched is for the first stream. Assignments come last, on the first stream.
  int stream_of(const Node& node) const {
    if (is_bucket(node) || !staged_slots(node).empty()) return kCommunicationStream;
    if (is_assignment(node)) return kComputeStream;
    const bool follows = std::ranges::any_of(node.inputs, [&](ValueId id) {
      const NodeId from = maker_[index(id)];
      return stream_[index(from)] == kCommunicationStream && !is_prefetched(graph().node(from));
    });
    return follows ? kCommunicationStream : kComputeStream;
  }

  void find_last_uses() {
    last_use_.assign(storage_of_.size(), -1);
    for (int s = 0; s < instruction_count(); ++s) {
      for (ValueId id : node_of(s).inputs) last_use_[index(root_[index(id)])] = s;
    }
    for (const auto& [name, id] : graph().outputs()) {
      last_use_[index(root_[index(id)])] = instruction_count();
    }
  }

  void assign_storages() {
    for (const Node& node : graph().nodes()) {
      if (node.op != Op::Input) continue;
      const ValueId id = node.outputs[0];
      storage_of_[index(id)] = new_storage(id, -1);
      storages_.back().pinned = true;
      storages_.back().last = instruction_count();
    }
    for (int s = 0; s < instruction_count(); ++s) {
      const Node& node = node_of(s);
      const std::vector<std::pair<int, int>> pairs = in_place_pairs(graph(), node);
      std::set<int> taken;  // storages that another output of this node already uses
      for (std::size_t o = 0; o < node.outputs.size(); ++o) {
        const int storage = reusable(node, o, s, pairs, taken);
        const ValueId id = node.outputs[o];
        if (root_[index(id)] != id) continue;  // in memory that is there already
        storage_of_[index(id)] = storage >= 0 ? storage : new_storage(id, s);
        taken.insert(storage_of_[index(id)]);
        Storage& chosen = storages_[index(storage_of_[index(id)])];
        chosen.last = std::max({chosen.last, s, last_use_[index(id)]});
      }
      if (plan_.instructions[index(s)].stream == kCommunicationStream) mark_communicated(node, s);
    }
  }

  void mark_communicated(const Node& node, int s) {
    for (const auto* ids : {&node.inputs, &node.outputs}) {
      for (ValueId id : *ids) {
        const int storage = storage_of_[index(root_[index(id)])];
        if (storage >= 0) storages_[index(storage)].communicated = s;
      }
    }
  }

  void mark_outputs() {
    for (const auto& [name, id] : graph().outputs()) {
      const int storage = storage_of_[index(root_[index(id)])];
      if (storage >= 0) storages_[index(storage)].output = true;
    }
  }

  // The storage of an input that dies here and in which output `o` may be computed; -1: none.
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
                        (candidate.communicated < 0 || stream_of(node) == kCommunicationStream);
      const bool alike = graph().type(input) == graph().type(node.outputs[o]) &&
                         graph().info(input).layout == graph().info(node.outputs[o]).layout;
      const auto uses = std::count_if(node.inputs.begin(), node.inputs.end(), [&](ValueId id) {
        return storage_of_[index(root_[index(id)])] == storage;
      });
      if (whole && dies && alike && uses == 1) return storage;
    }
    return -1;
  }

  int new_storage(ValueId id, int instruction) {
    Storage storage;
    storage.bytes = graph().bytes(id);
    storage.first = storage.last = instruction;
    storages_.push_back(storage);
    return static_cast<int>(storages_.size()) - 1;
  }

  // Makes contiguous, in its order, what a node needs as one block (the results of a bucket, the
  // gradients of an update), unless it already is.
  void group_side_by_side(const Node& node) {
    std::span<const ValueId> wanted;
    if (node.op == Op::AllReduce || node.op == Op::AllGather) wanted = node.outputs;
    if (node.op == Op::ReduceScatter) wanted = node.inputs;
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

  // A collective of slices works on one block of memory: a workspace or, without copies, the values
  // themselves, where they are contiguous and, if they are its inputs, nobody reads them later.
  void drop_workspace(int s) {
    const Node& node = node_of(s);
    if (node.op != Op::ReduceScatter && node.op != Op::AllGather) return;
    if (in_place_.gathers.contains(plan_.instructions[index(s)].node)) {
      plan_.instructions[index(s)].workspace_bytes = 0;
      return;
    }
    const bool reads = node.op == Op::ReduceScatter;
    std::vector<int> storages;
    for (ValueId id : reads ? node.inputs : node.outputs) {
      const int storage = storage_of_[index(root_[index(id)])];
      if (storage < 0 || storages_[index(storage)].bytes != graph().bytes(id)) return;
      if (storages_[index(storage)].pinned) return;
      const bool stays = in_place_.parts.contains(node.outputs.front());
      if (reads && !stays && storages_[index(storage)].last > s) return;
      storages.push_back(storage);
    }
    const int group = storages_[index(storages.front())].group;
    if (group < 0 || groups_[index(group)] != storages) return;
    plan_.instructions[index(s)].workspace_bytes = 0;
  }

  // What is placed as one: contiguous storages, in this order, or a workspace.
  struct Block {
    std::vector<int> members;
    std::size_t bytes = 0;
    int first = 0;
    int last = 0;           // in the order of instructions
    int communicated = -1;  // the last instruction of the communication stream that touches it
    bool apart = false;     // holds an input or output: not in the arena
    int workspace_of = -1;  // instruction
    std::vector<int> staging_of = {};  // instructions that use it in turns

    // Until when it is in use, if each instruction uses what it touches until last_in_use.
    ArenaBlock lived(const std::vector<int>& last_in_use) const {
      const int kept = communicated < 0 ? last : last_in_use[index(communicated)];
      return {.bytes = bytes, .first = first, .last = std::max(last, kept)};
    }
  };

  Block block_of(std::vector<int> members) const {
    Block block{.members = std::move(members), .first = instruction_count(), .last = -1};
    for (int member : block.members) {
      const Storage& storage = storages_[index(member)];
      block.bytes += storage.bytes;
      block.first = std::min(block.first, storage.first);
      block.last = std::max(block.last, storage.last);
      block.communicated = std::max(block.communicated, storage.communicated);
      block.apart = block.apart || storage.pinned || storage.output;
    }
    return block;
  }

  void collect_blocks() {
    std::vector<Block> all;
    for (const std::vector<int>& members : groups_) all.push_back(block_of(members));
    for (int s = 0; s < static_cast<int>(storages_.size()); ++s) {
      if (storages_[index(s)].group < 0) all.push_back(block_of({s}));
    }
    for (Block& block : all) {
      if (!block.apart) {
        blocks_.push_back(std::move(block));
        continue;
      }
      put(block, plan_.input_output_bytes);
      plan_.input_output_bytes += arena_aligned(block.bytes);
    }
    for (int s = 0; s < instruction_count(); ++s) {
      const Instruction& instruction = plan_.instructions[index(s)];
      if (instruction.workspace_bytes == 0) continue;
      blocks_.push_back({.members = {},
                         .bytes = instruction.workspace_bytes,
                         .first = s,
                         .last = s,
                         .communicated = instruction.stream == kCommunicationStream ? s : -1,
                         .workspace_of = s});
    }
    add_staging();
  }

  // Two buffers for updates whose slots are in host memory, in turns: while one is copied back, the
  // next comes. The first copy may begin as soon as the step does.
  void add_staging() {
    constexpr std::size_t kBuffers = 2;
    std::vector<int> staged;
    for (int s = 0; s < instruction_count(); ++s) {
      if (plan_.instructions[index(s)].staging_bytes > 0) staged.push_back(s);
    }
    for (std::size_t b = 0; b < std::min(kBuffers, staged.size()); ++b) {
      Block block{.members = {}, .first = 0, .last = instruction_count()};
      for (std::size_t i = b; i < staged.size(); i += kBuffers) {
        block.bytes = std::max(block.bytes, plan_.instructions[index(staged[i])].staging_bytes);
        block.staging_of.push_back(staged[i]);
      }
      blocks_.push_back(std::move(block));
    }
  }

  // Places the contents of a block, starting at `offset`.
  void put(const Block& block, std::size_t offset) {
    if (block.workspace_of >= 0) {
      plan_.instructions[index(block.workspace_of)].workspace_offset = offset;
    }
    for (int s : block.staging_of) plan_.instructions[index(s)].staging_offset = offset;
    for (int member : block.members) {
      Storage& storage = storages_[index(member)];
      storage.place = block.apart ? Place::InputOutput : Place::Arena;
      storage.offset = offset;
      offset += storage.bytes;
    }
  }

  std::vector<ArenaBlock> lifetimes(std::span<const Release> releases) const {
    const std::vector<int> last = last_in_use(plan_.instructions, releases);
    std::vector<ArenaBlock> lived;
    for (const Block& block : blocks_) lived.push_back(block.lived(last));
    return lived;
  }

  // Whether blocks at these offsets never overlap while both are in use. Only those that the
  // communication stream touches are in use longer than when they were placed.
  bool fit(const std::vector<std::size_t>& offsets, std::span<const Release> releases) const {
    const std::vector<ArenaBlock> lived = lifetimes(releases);
    for (std::size_t a = 0; a < lived.size(); ++a) {
      if (blocks_[a].communicated < 0) continue;
      for (std::size_t b = 0; b < lived.size(); ++b) {
        const bool together = lived[a].first <= lived[b].last && lived[b].first <= lived[a].last;
        if (a != b && together && offsets[a] < offsets[b] + lived[b].bytes &&
            offsets[b] < offsets[a] + lived[a].bytes) {
          return false;
        }
      }
    }
    return true;
  }

  // Places all blocks, with releases if they are worth it, and keeps only the releases that are
  // needed.
  Arena place_in_arena() {
    Arena kept = place_blocks(lifetimes({}));
    std::vector<Release> releases = find_releases(graph(), plan_.instructions);
    if (releases.empty()) return kept;
    Arena released = place_blocks(lifetimes(releases));
    if (released.bytes + kept.bytes / 16 > kept.bytes) return kept;
    for (std::size_t r = 0; r < releases.size();) {
      std::vector<Release> fewer = releases;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(r));
      if (fit(released.offsets, fewer)) {
        releases = std::move(fewer);
      } else {
        ++r;
      }
    }
    for (const Release& release : releases) {
      plan_.instructions[index(release.at)].waits.push_back(release.of);
    }
    return released;
  }

  void place() {
    const Arena arena = place_in_arena();
    plan_.arena_bytes = arena.bytes;
    plan_.live_bytes = arena.live_bytes;
    for (std::size_t b = 0; b < blocks_.size(); ++b) put(blocks_[b], arena.offsets[b]);
    plan_.values.resize(storage_of_.size());
    std::set<ValueId> on_host;
    for (const Node& node : graph().nodes()) {
      const std::span<const ValueId> slots = staged_slots(node);
      on_host.insert(slots.begin(), slots.end());
    }
    for (const Node& node : graph().nodes()) {
      for (ValueId id : node.outputs) {
        Allocation& allocation = plan_.values[index(id)];
        const ValueId root = root_[index(id)];
        allocation.bytes = graph().bytes(id);
        const int storage = storage_of_[index(root)];
        if (storage >= 0) {
          allocation.place = storages_[index(storage)].place;
          allocation.offset = storages_[index(storage)].offset + shift_[index(id)];
        } else {
          allocation.of = root;
          allocation.offset = shift_[index(id)];
          allocation.place =
              graph().producer(root).op == Op::Variable ? Place::Variable : Place::Constant;
          if (id == root) {
            (on_host.contains(id)                  ? plan_.host_bytes
             : allocation.place == Place::Variable ? plan_.variable_bytes
                                                   : plan_.constant_bytes) += allocation.bytes;
          }
        }
      }
    }
  }

  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  int instruction_count() const { return static_cast<int>(plan_.instructions.size()); }
  const Node& node_of(int instruction) const {
    return graph().node(plan_.instructions[index(instruction)].node);
  }

  const Backend& backend_;
  Plan plan_;
  SlicesInPlace in_place_;
  std::vector<ValueId> root_;
  std::vector<std::size_t> shift_;  // by ValueId
  std::vector<NodeId> maker_;       // by ValueId
  std::vector<int> stream_;         // by NodeId
  int last_communication_ = -1;     // the last instruction of the communication stream so far
  std::map<int, int> prefetched_;   // nodes, and their instructions
  int awaited_ = -1;                // up to here the compute stream has waited for the other
  std::vector<int> storage_of_;     // by ValueId of a root; -1: a variable or constant
  std::vector<int> last_use_;       // by ValueId of a root
  std::vector<Storage> storages_;
  std::vector<std::vector<int>> groups_;
  std::vector<Block> blocks_;  // of the arena
};

}  // namespace

Plan make_plan(Graph graph, const Backend& backend) {
  verify(graph);
  return Planner(std::move(graph), backend).run();
}

}  // namespace lockstep
