#include "lockstep/exec/executor.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/collective.h"

namespace lockstep {

// A step: a kernel, or, where replicas add up, a collective for each stretch of memory.
struct Executor::Bound {
  std::unique_ptr<Kernel> kernel;
  std::vector<std::unique_ptr<Collective>> sums;
  // What does not lie where the sums will, and has to be brought there.
  struct Copy {
    const std::byte* from;
    std::byte* to;
    std::size_t bytes;
  };
  std::vector<Copy> copies;
  const char* name = "";
  bool waits = false;          // for the communication stream
  bool communication = false;  // belongs to that stream
  // Whether its values come from the compute stream alone, so that it can start at once.
  bool starts_early = true;
  std::int64_t started_ns = 0;
};

Executor::Executor(Plan plan, const KernelLibrary& library, State& state, ExecutorOptions options)
    : plan_(std::move(plan)), state_(state), stream_(state.device().make_stream()) {
  state_.add(plan_.graph);
  state_.device().enter();
  for (const Node& node : plan_.graph.nodes()) {
    if (node.op != Op::Variable) continue;
    const Layout& wanted = plan_.graph.info(node.outputs[0]).layout;
    const Layout& actual = state_.layout(*node.variable);
    ensure(wanted == actual, "variable {} lies in layout '{}', but the plan wants '{}'", node.name,
           actual.str(), wanted.str());
  }
  arena_ = state_.device().allocate(plan_.arena_bytes);
  if (options.recorder != nullptr) {
    track_ = &options.recorder->track(options.track);
    if (options.gradient_comm != nullptr) {
      communication_track_ = &options.recorder->track(options.track + " communication");
    }
  }
  if (options.gradient_comm != nullptr) {
    most_under_way_ = static_cast<std::size_t>(options.gradient_comm->most_under_way());
  }
  for (const PlanStep& step : plan_.steps) bind(step, library, options);
  for (std::size_t s = 0; s < bound_.size(); ++s) {
    if (bound_[s].communication) communication_.push_back(s);
  }
}

Executor::~Executor() = default;

void Executor::bind(const PlanStep& step, const KernelLibrary& library,
                    const ExecutorOptions& options) {
  const Node& node = plan_.graph.node(step.node);
  Bound bound;
  bound.waits = !step.waits.empty();
  bound.communication = step.stream == kCommunicationStream;
  if (options.recorder != nullptr) {
    bound.name = options.recorder->intern(
        fmt::format("{}{}{}", op_def(node.op).name, node.name.empty() ? "" : " ", node.name));
  }
  Communicator* comm = bound.communication ? options.gradient_comm : options.compute_comm;
  if (node.op == Op::AllReduce && comm != nullptr) {
    bind_sums(bound, node, *comm);
  } else {
    const KernelCall call{plan_.graph, node};
    Binding binding;
    for (ValueId id : node.inputs) binding.inputs.push_back(address(id));
    for (ValueId id : node.outputs) binding.outputs.push_back(address(id));
    if (step.workspace_bytes > 0) binding.workspace = arena_->data() + step.workspace_offset;
    bound.kernel = library.find(call).make(call);
    bound.kernel->bind(binding);
  }
  bound_.push_back(std::move(bound));
}

// One collective for each stretch of sums that lie side by side: one for all, as the plan lays
// them.
void Executor::bind_sums(Bound& bound, const Node& node, Communicator& comm) {
  const DType dtype = plan_.graph.type(node.outputs[0]).dtype;
  std::byte* begin = nullptr;
  std::byte* end = nullptr;
  const auto close = [&] {
    if (begin == end) return;
    bound.sums.push_back(comm.all_reduce({begin, static_cast<std::size_t>(end - begin)}, dtype));
  };
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    std::byte* const to = address(node.outputs[i]);
    const std::byte* const from = address(node.inputs[i]);
    const std::size_t bytes = plan_.graph.bytes(node.outputs[i]);
    if (bytes == 0) continue;
    if (from != to) bound.copies.push_back({from, to, bytes});
    if (to != end) {
      close();
      begin = to;
    }
    end = to + bytes;
  }
  close();
  bound.starts_early = std::ranges::none_of(node.inputs, [&](ValueId id) {
    NodeId from = plan_.graph.info(id).producer;
    while (op_def(plan_.graph.node(from).op).view) {
      from = plan_.graph.info(plan_.graph.node(from).inputs[0]).producer;
    }
    return std::ranges::any_of(plan_.steps, [&](const PlanStep& step) {
      return step.stream == kCommunicationStream && step.node == from;
    });
  });
}

std::byte* Executor::address(ValueId id) const {
  const Allocation& allocation = plan_.values[static_cast<std::size_t>(id)];
  if (allocation.place == Place::Arena) return arena_->data() + allocation.offset;
  const Node& node = leaf(id);
  if (node.op == Op::Variable) return state_.data(*node.variable);
  return const_cast<std::byte*>(node.constant.raw());  // never written: constants are inputs only
}

// The variable or constant whose memory a value outside the arena looks at.
const Node& Executor::leaf(ValueId id) const {
  const Node* node = &plan_.graph.producer(id);
  while (node->op != Op::Variable && node->op != Op::Constant) {
    node = &plan_.graph.producer(node->inputs[0]);
  }
  return *node;
}

Tensor Executor::view(ValueId id) const {
  const Allocation& allocation = plan_.values[static_cast<std::size_t>(id)];
  const ValueType& type = plan_.graph.type(id);
  if (allocation.place == Place::Arena) {
    return Tensor(type.dtype, type.shape, arena_, allocation.offset);
  }
  const Node& node = leaf(id);
  const Tensor value = node.op == Op::Variable ? state_.get(*node.variable) : node.constant;
  return value.reshaped(type.shape);
}

Tensor Executor::input(std::string_view name) {
  return view(plan_.graph.input_id(name));
}

Tensor Executor::output(std::string_view name) const {
  return view(plan_.graph.output_id(name));
}

bool Executor::has_input(std::string_view name) const {
  const auto& inputs = plan_.graph.inputs();
  return std::any_of(inputs.begin(), inputs.end(),
                     [&](const auto& entry) { return entry.first == name; });
}

void Executor::run() {
  state_.device().enter();
  reached_ = started_ = done_ = under_way_ = 0;
  if (track_ != nullptr) clock_ns_ = now_ns();
  try {
    for (std::size_t s = 0; s < bound_.size(); ++s) {
      Bound& bound = bound_[s];
      if (bound.communication) {
        ++reached_;
        start_sums();
      } else {
        if (bound.waits) drain();
        current_ = s;
        if (bound.kernel != nullptr) {
          run_kernel(bound);
        } else {
          for (const Bound::Copy& copy : bound.copies) std::memcpy(copy.to, copy.from, copy.bytes);
          for (const auto& sum : bound.sums) sum->start();
          finish_sums(bound);
        }
      }
      if (done_ < reached_) carry_on();
    }
    drain();
  } catch (const DataError& error) {
    const Node& node = plan_.graph.node(plan_.steps[current_].node);
    fail<DataError>("[{}] {}: {}", op_def(node.op).name, node.name, error.what());
  }
}

void Executor::run_kernel(Bound& bound) {
  bound.kernel->run(*stream_);
  if (track_ == nullptr) return;
  const std::int64_t now = now_ns();
  track_->add(bound.name, SpanKind::Compute, clock_ns_, now);
  clock_ns_ = now;
}

// Starts the sums that the order has come to, in their order on every replica.
void Executor::start_sums() {
  for (; started_ < reached_; ++started_) {
    Bound& bound = bound_[communication_[started_]];
    if (bound.kernel != nullptr) continue;
    if (!bound.starts_early && done_ < started_) return;
    if (under_way_ > 0 && under_way_ + bound.sums.size() > most_under_way_) return;
    under_way_ += bound.sums.size();
    for (const Bound::Copy& copy : bound.copies) std::memcpy(copy.to, copy.from, copy.bytes);
    if (communication_track_ != nullptr) bound.started_ns = now_ns();
    for (const auto& sum : bound.sums) sum->start();
  }
}

// Ends what can be ended without waiting.
void Executor::carry_on() {
  constexpr std::int64_t kWorthASpan = 1000;  // ns; a look at the others costs less
  while (done_ < reached_) {
    current_ = communication_[done_];
    Bound& bound = bound_[current_];
    if (bound.kernel != nullptr) {
      run_kernel(bound);
    } else {
      const bool ended =
          std::ranges::all_of(bound.sums, [](const auto& sum) { return sum->advance(); });
      if (track_ != nullptr) {
        const std::int64_t now = now_ns();
        if (ended || now - clock_ns_ > kWorthASpan) {
          track_->add(bound.name, SpanKind::Communication, clock_ns_, now);
          clock_ns_ = now;
        }
        if (ended && communication_track_ != nullptr) {
          communication_track_->add(bound.name, SpanKind::Communication, bound.started_ns, now);
        }
      }
      if (!ended) return;
      under_way_ -= bound.sums.size();
    }
    ++done_;
    start_sums();
  }
}

// Ends all that has been reached.
void Executor::drain() {
  for (;;) {
    carry_on();
    if (done_ == reached_) return;
    Bound& bound = bound_[communication_[done_]];
    finish_sums(bound);
    if (communication_track_ != nullptr) {
      communication_track_->add(bound.name, SpanKind::Communication, bound.started_ns, clock_ns_);
    }
    under_way_ -= bound.sums.size();
    ++done_;
    start_sums();
  }
}

// Waits for the slower replicas, then for the sums themselves, and tells the two apart.
void Executor::finish_sums(Bound& bound) {
  for (const auto& sum : bound.sums) sum->await_ranks();
  const std::int64_t together = track_ == nullptr ? 0 : now_ns();
  for (const auto& sum : bound.sums) sum->finish();
  if (track_ == nullptr) return;
  const std::int64_t now = now_ns();
  track_->add(bound.name, SpanKind::Wait, clock_ns_, together);
  track_->add(bound.name, SpanKind::Communication, together, now);
  clock_ns_ = now;
}

}  // namespace lockstep
