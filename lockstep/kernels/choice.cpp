#include "lockstep/kernels/choice.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/layout.h"
#include "lockstep/profile/recorder.h"

namespace lockstep {
namespace {

// Nodes with the same key share a choice: "conv2d {…} f32(64, 28, 28, 1), f32(5, 5, 1, 32) ->
// f32(…)". Layouts are not part of it: they follow from the choice.
std::string key_of(const KernelCall& call) {
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  for (ValueId id : call.node.inputs) inputs.push_back(call.graph.type(id).str());
  for (ValueId id : call.node.outputs) outputs.push_back(call.graph.type(id).str());
  return fmt::format("{} {} {} -> {}", op_def(call.node.op).name, call.attrs().str(),
                     fmt::join(inputs, ", "), fmt::join(outputs, ", "));
}

// Adds the same node to another graph, its outputs in the candidate's layouts; returns the first.
Value add_node(Graph& graph, const std::vector<Value>& inputs, const KernelCall& call,
               const MeasuredChoice::Candidate& candidate) {
  const std::vector<Value> outputs = graph.add(call.node.op, inputs, call.attrs());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    graph.info(outputs[i].id()).layout = candidate.layouts.outputs[i];
  }
  return outputs[0];
}

// One candidate, ready to run in separate memory: reorders of the inputs that are not in the
// layouts it wants, the node, and a reorder of its first output to the first candidate's layout.
class Trial {
 public:
  Trial(const KernelCall& call, const MeasuredChoice::Candidate& candidate,
        const Layout& result_layout, const KernelLibrary& library)
      : stream_(host().make_stream()) {
    std::vector<Value> inputs;
    for (std::size_t i = 0; i < call.in_count(); ++i) {
      const Layout& wanted = candidate.layouts.inputs[i];
      const Value input = graph_.input(fmt::format("x{}", i), call.input(i).type);
      graph_.info(input.id()).layout = layout_is_free(call, i) ? wanted : call.input(i).layout;
      inputs.push_back(graph_.info(input.id()).layout == wanted ? input : reorder(input, wanted));
    }
    const Value result = add_node(graph_, inputs, call, candidate);
    if (candidate.layouts.outputs[0] != result_layout) reorder(result, result_layout);
    allocate();
    for (const Node& node : graph_.nodes()) {
      if (node.op == Op::Input) continue;
      const KernelCall own{graph_, node};
      add(own, node.op == call.node.op ? *candidate.def : library.find(own));
    }
  }

  // Whether the kernel can compute the node in the layouts it asked for.
  static bool possible(const KernelCall& call, const MeasuredChoice::Candidate& candidate) {
    Graph graph;
    std::vector<Value> inputs;
    for (std::size_t i = 0; i < call.in_count(); ++i) {
      inputs.push_back(graph.input(fmt::format("x{}", i), call.input(i).type));
      graph.info(inputs.back().id()).layout = candidate.layouts.inputs[i];
    }
    add_node(graph, inputs, call, candidate);
    const KernelCall own{graph, graph.nodes().back()};
    return candidate.def->supports == nullptr ? own.row_major() : candidate.def->supports(own);
  }

  void run() {
    for (const std::unique_ptr<Kernel>& kernel : kernels_) kernel->run(*stream_);
  }

 private:
  // A variable without a layout yet gets the one its first reader wants.
  static bool layout_is_free(const KernelCall& call, std::size_t i) {
    return call.graph.producer(call.node.inputs[i]).op == Op::Variable &&
           call.input(i).layout.row_major();
  }

  void allocate() {
    for (ValueId id = 0; id < static_cast<ValueId>(graph_.value_count()); ++id) {
      buffers_.push_back(host().allocate(graph_.bytes(id)));
    }
    for (const auto& [name, id] : graph_.inputs()) {
      if (graph_.type(id).dtype != DType::F32) continue;  // zeros: valid as labels and indices
      Buffer& buffer = *buffers_[static_cast<std::size_t>(id)];
      auto* values = reinterpret_cast<float*>(buffer.data());
      for (std::size_t i = 0; i < buffer.bytes() / sizeof(float); ++i) {
        values[i] = 0.5f + static_cast<float>(i % 13) * 0.0625f;
      }
    }
  }

  void add(const KernelCall& call, const KernelDef& def) {
    Binding binding;
    for (ValueId id : call.node.inputs) {
      binding.inputs.push_back(buffers_[static_cast<std::size_t>(id)]->data());
    }
    for (ValueId id : call.node.outputs) {
      binding.outputs.push_back(buffers_[static_cast<std::size_t>(id)]->data());
    }
    if (def.workspace_bytes != nullptr) {
      buffers_.push_back(host().allocate(def.workspace_bytes(call)));
      binding.workspace = buffers_.back()->data();
    }
    kernels_.push_back(def.make(call));
    kernels_.back()->bind(binding);
  }

  Graph graph_;
  std::vector<std::shared_ptr<Buffer>> buffers_;  // one per value, then workspaces
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace

MeasuredChoice::MeasuredChoice(MeasuringOptions options, KernelChoices known)
    : options_(std::move(options)), chosen_(std::move(known)) {
  require(options_.runs > 0, "measuring kernels takes at least one run, not {}", options_.runs);
  if (!options_.clock) options_.clock = now_ns;
}

std::size_t MeasuredChoice::choose(const KernelCall& call, const std::vector<Candidate>& candidates,
                                   const KernelLibrary& library) {
  const auto index_of = [&](const std::string& name) {
    const auto found = std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& c) {
      return c.def->name == name && Trial::possible(call, c);
    });
    return static_cast<std::size_t>(found - candidates.begin());
  };
  if (const std::size_t known = index_of(chosen(call)); known < candidates.size()) return known;
  const std::size_t fastest = candidates.size() > 1 ? measure(call, candidates, library) : 0;
  const std::lock_guard lock(mutex_);
  std::string& name = chosen_[key_of(call)];
  // Another thread may have chosen first; its choice stays.
  if (const std::size_t known = index_of(name); known < candidates.size()) return known;
  name = candidates[fastest].def->name;
  return fastest;
}

std::size_t MeasuredChoice::measure(const KernelCall& call,
                                    const std::vector<Candidate>& candidates,
                                    const KernelLibrary& library) {
  constexpr std::int64_t kHopeless = 3;  // times the fastest so far
  const auto limit = static_cast<std::int64_t>(options_.most_seconds * 1e9);
  std::size_t best = 0;
  std::int64_t best_ns = -1;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (spent_ns_ >= limit) break;
    if (!Trial::possible(call, candidates[i])) continue;
    const std::int64_t begin = options_.clock();
    Trial trial(call, candidates[i], candidates.front().layouts.outputs[0], library);
    const auto time = [&] {
      const std::int64_t before = options_.clock();
      trial.run();
      return options_.clock() - before;
    };
    // The first run also warms up the memory; a kernel that is far too slow is not run again.
    std::int64_t fastest = time();
    const bool hopeless = best_ns >= 0 && fastest > kHopeless * best_ns;
    for (int run = 0; run < options_.runs && !hopeless; ++run) fastest = std::min(fastest, time());
    if (best_ns < 0 || fastest < best_ns) {
      best = i;
      best_ns = fastest;
    }
    spent_ns_ += options_.clock() - begin;
  }
  return best;
}

std::string MeasuredChoice::chosen(const KernelCall& call) const {
  const std::lock_guard lock(mutex_);
  const auto found = chosen_.find(key_of(call));
  return found == chosen_.end() ? std::string() : found->second;
}

KernelChoices MeasuredChoice::choices() const {
  const std::lock_guard lock(mutex_);
  return chosen_;
}

}  // namespace lockstep
