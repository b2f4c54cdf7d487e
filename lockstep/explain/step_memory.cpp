#include "lockstep/explain/step_memory.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/collective.h"
#include "lockstep/plan/release.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostInstructions = 1000;
constexpr std::size_t kMostParts = 200;
constexpr const char* kBatch = "inputs, outputs and constants";

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

// "dense_1" of "dense_1.grad" and "dense_1/kernel".
std::string layer_of(const std::string& name) {
  return name.substr(0, name.find_first_of("./"));
}

std::string variable_layer(const std::string& name) {
  const std::size_t slash = name.find_last_of('/');
  return slash == std::string::npos ? name : name.substr(0, slash);
}

// The variables of a plan and whose they are: an update says which are slots, of what.
struct Owner {
  std::string layer;
  MemoryKind kind = MemoryKind::Parameters;
};

// A block of the arena, from one instruction to another.
struct Block {
  std::size_t begin = 0;
  std::size_t end = 0;
  int first = 0;
  int last = 0;
  MemoryKind kind = MemoryKind::Activations;
  std::string layer = {};
};

class Survey {
 public:
  explicit Survey(const Plan& plan) : plan_(plan) {
    find_gradients();
    find_variables();
    find_blocks();
  }

  StepMemory run() {
    StepMemory memory;
    const auto count = static_cast<int>(plan_.instructions.size());
    int peak = -1;
    double most = -1;
    for (int i = 0; i < count; ++i) {
      MemoryAt now{.instruction = name_at(i), .bytes = fixed_};
      for (const auto& [block, bytes] : alive(i)) {
        now.bytes[static_cast<std::size_t>(block->kind)] += static_cast<double>(bytes);
      }
      if (const double total = total_bytes(now); total > most) {
        most = total;
        peak = i;
      }
      memory.instructions.push_back(std::move(now));
    }
    if (peak >= 0) memory.peak = parts_at(peak);
    thin(memory);
    return memory;
  }

 private:
  const Node& node_at(int instruction) const {
    return plan_.graph.node(plan_.instructions[at(instruction)].node);
  }
  std::string name_at(int instruction) const {
    const Node& node = node_at(instruction);
    const std::string op(op_def(node.op).name);
    return node.name.empty() ? op : op + " " + node.name;
  }

  void find_gradients() {
    is_gradient_.assign(at(plan_.graph.value_count()), false);
    const auto mark = [&](ValueId id) { is_gradient_[at(id)] = true; };
    for (const Node& node : plan_.graph.nodes()) {
      if (is_bucket(node) && !is_aside(node)) {
        std::ranges::for_each(node.inputs, mark);
        std::ranges::for_each(node.outputs, mark);
      }
      if (node.op != Op::Update) continue;
      const auto parameters = at(static_cast<int>(node.attrs.integer("count")));
      for (std::size_t i = 3 + parameters; i < std::min(node.inputs.size(), 3 + 2 * parameters);
           ++i) {
        mark(node.inputs[i]);
      }
    }
  }

  void find_variables() {
    std::map<ValueId, Owner> slots;
    for (const Node& node : plan_.graph.nodes()) {
      if (node.op != Op::Update) continue;
      const auto parameters = at(static_cast<int>(node.attrs.integer("count")));
      for (std::size_t i = 3 + 2 * parameters; i < node.inputs.size(); ++i) {
        const Node& parameter =
            plan_.graph.producer(node.inputs[3 + (i - 3 - 2 * parameters) % parameters]);
        slots[node.inputs[i]] = {
            .layer = parameter.variable ? variable_layer(parameter.variable->name) : parameter.name,
            .kind = MemoryKind::Optimizer};
      }
    }
    const auto add = [&](const std::string& layer, MemoryKind kind, std::size_t bytes) {
      owned_[{layer, kind}] += static_cast<double>(bytes);
      fixed_[static_cast<std::size_t>(kind)] += static_cast<double>(bytes);
    };
    std::size_t known = 0;
    for (const Node& node : plan_.graph.nodes()) {
      if (node.op != Op::Variable) continue;
      const std::size_t bytes = plan_.values[at(node.outputs[0])].bytes;
      known += bytes;
      const auto slot = slots.find(node.outputs[0]);
      if (slot != slots.end()) {
        add(slot->second.layer, MemoryKind::Optimizer, bytes);
      } else {
        add(node.variable ? variable_layer(node.variable->name) : node.name, MemoryKind::Parameters,
            bytes);
      }
    }
    // Alignment, and variables that only other plans of the model read.
    if (plan_.variable_bytes > known) {
      add("other variables", MemoryKind::Parameters, plan_.variable_bytes - known);
    }
    add(kBatch, MemoryKind::Activations, plan_.input_output_bytes + plan_.constant_bytes);
  }

  void find_blocks() {
    std::vector<Release> releases;
    for (int i = 0; i < std::ssize(plan_.instructions); ++i) {
      const Instruction& instruction = plan_.instructions[at(i)];
      if (instruction.stream == kComputeStream && !instruction.waits.empty()) {
        releases.push_back({.at = i, .of = std::ranges::max(instruction.waits)});
      }
    }
    const std::vector<int> in_use = last_in_use(plan_.instructions, releases);
    std::vector<int> first(at(plan_.graph.value_count()), -1);
    std::vector<int> last = first;
    std::vector<bool> runs(plan_.graph.nodes().size(), false);
    const auto touch = [&](ValueId id, int instruction, int until) {
      if (first[at(id)] < 0) first[at(id)] = instruction;
      last[at(id)] = std::max(last[at(id)], until);
    };
    for (int i = 0; i < std::ssize(plan_.instructions); ++i) {
      const Instruction& instruction = plan_.instructions[at(i)];
      runs[at(instruction.node)] = true;
      const Node& node = node_at(i);
      for (const ValueId id : node.outputs) touch(id, i, in_use[at(i)]);
      for (const ValueId id : node.inputs) touch(id, i, in_use[at(i)]);
      if (instruction.workspace_bytes > 0) {
        blocks_.push_back({.begin = instruction.workspace_offset,
                           .end = instruction.workspace_offset + instruction.workspace_bytes,
                           .first = i,
                           .last = in_use[at(i)],
                           .kind = MemoryKind::Workspace,
                           .layer = layer_of(node.name)});
      }
    }
    // A view lives as long as what it shows, and the other way round: its root is read through it.
    for (auto node = plan_.graph.nodes().rbegin(); node != plan_.graph.nodes().rend(); ++node) {
      const bool leaf =
          node->op == Op::Input || node->op == Op::Variable || node->op == Op::Constant;
      if (leaf || runs[static_cast<std::size_t>(&*node - plan_.graph.nodes().data())]) continue;
      for (const ValueId input : node->inputs) {
        for (const ValueId output : node->outputs) {
          last[at(input)] = std::max(last[at(input)], last[at(output)]);
        }
      }
    }
    for (ValueId id = 0; id < plan_.graph.value_count(); ++id) {
      const Allocation& allocation = plan_.values[at(id)];
      if (allocation.place != Place::Arena || allocation.bytes == 0 || first[at(id)] < 0) continue;
      blocks_.push_back(
          {.begin = allocation.offset,
           .end = allocation.offset + allocation.bytes,
           .first = first[at(id)],
           .last = last[at(id)],
           .kind = is_gradient_[at(id)] ? MemoryKind::Gradients : MemoryKind::Activations,
           .layer = layer_of(plan_.graph.producer(id).name)});
    }
    std::ranges::stable_sort(blocks_, {}, &Block::begin);
  }

  // The blocks that are alive while an instruction runs, with the bytes that each has for itself:
  // memory that is shared counts for the block that began last.
  std::vector<std::pair<const Block*, std::size_t>> alive(int instruction) const {
    std::vector<std::pair<const Block*, std::size_t>> found;
    std::size_t reached = 0;
    for (const Block& block : blocks_) {
      if (block.first > instruction || block.last < instruction) continue;
      const std::size_t begin = std::max(block.begin, reached);
      if (!found.empty() && block.begin < reached && block.first > found.back().first->first) {
        const std::size_t taken = std::min(found.back().second, reached - block.begin);
        found.back().second -= taken;
        found.emplace_back(&block, taken + (block.end > begin ? block.end - begin : 0));
      } else if (block.end > begin) {
        found.emplace_back(&block, block.end - begin);
      }
      reached = std::max(reached, block.end);
    }
    return found;
  }

  std::vector<PeakPart> parts_at(int instruction) const {
    std::map<std::pair<std::string, MemoryKind>, double> bytes = owned_;
    for (const auto& [block, size] : alive(instruction)) {
      bytes[{block->layer, block->kind}] += static_cast<double>(size);
    }
    std::vector<PeakPart> parts;
    for (const auto& [of, size] : bytes) {
      if (size > 0) parts.push_back({.layer = of.first, .bytes = size, .kind = of.second});
    }
    std::ranges::stable_sort(parts, std::ranges::greater{}, &PeakPart::bytes);
    if (parts.size() > kMostParts) {
      std::map<MemoryKind, double> rest;
      for (std::size_t i = kMostParts; i < parts.size(); ++i) rest[parts[i].kind] += parts[i].bytes;
      parts.resize(kMostParts);
      for (const auto& [kind, size] : rest) {
        parts.push_back({.layer = "others", .bytes = size, .kind = kind});
      }
    }
    return parts;
  }

  // Of each run of neighbours the one with the most memory.
  static void thin(StepMemory& memory) {
    const std::vector<MemoryAt>& all = memory.instructions;
    if (all.size() <= kMostInstructions) return;
    std::vector<MemoryAt> kept;
    for (std::size_t i = 0; i < kMostInstructions; ++i) {
      const auto begin =
          all.begin() + static_cast<std::ptrdiff_t>(i * all.size() / kMostInstructions);
      const auto end =
          all.begin() + static_cast<std::ptrdiff_t>((i + 1) * all.size() / kMostInstructions);
      kept.push_back(*std::ranges::max_element(begin, end, {}, total_bytes));
    }
    memory.instructions = std::move(kept);
  }

  const Plan& plan_;
  std::vector<bool> is_gradient_;                               // by value
  std::map<std::pair<std::string, MemoryKind>, double> owned_;  // what lasts for the whole step
  std::array<double, kMemoryKinds> fixed_ = {};                 // the same by kind
  std::vector<Block> blocks_;                                   // by offset
};

}  // namespace

const char* name_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::Parameters:
      return "parameters";
    case MemoryKind::Optimizer:
      return "optimizer";
    case MemoryKind::Gradients:
      return "gradients";
    case MemoryKind::Activations:
      return "activations";
    case MemoryKind::Workspace:
      break;
  }
  return "workspace";
}

double total_bytes(const MemoryAt& at) {
  return std::accumulate(at.bytes.begin(), at.bytes.end(), 0.0);
}

StepMemory memory_of(const Plan& plan) {
  return Survey(plan).run();
}

}  // namespace lockstep
