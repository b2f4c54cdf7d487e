#include "lockstep/train/session.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/remark.h"
#include "lockstep/passes/pipeline.h"
#include "lockstep/passes/precision.h"
#include "lockstep/strategy/distribute.h"

namespace lockstep {
namespace {

// Element by element.
void add_to(Tensor& total, const Tensor& value) {
  dispatch(total.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::span<T> sum = total.values<T>();
    const std::span<const T> more = value.values<T>();
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = static_cast<T>(sum[i] + more[i]);
  });
}

std::shared_ptr<Replicas> replicas_for(const SessionOptions& options) {
  if (options.replicas != nullptr) return options.replicas;
  // Kernels that somebody chose are those of a CPU.
  if (options.device != nullptr || options.kernels != nullptr) {
    return std::make_shared<Replicas>(options.device);
  }
  return default_replicas();
}

}  // namespace

Session::Session(const SessionOptions& options)
    : replicas_(replicas_for(options)),
      kernels_(options.kernels),
      seed_(options.seed),
      record_(options.record),
      recorder_(std::make_unique<Recorder>()) {
  for (int r = 0; r < size(); ++r) {
    states_.push_back(std::make_unique<State>(replicas_->device(r), seed_));
    tracks_.push_back(&recorder_->track(fmt::format("replica {}", r)));
  }
  host_track_ = replicas_->threaded() ? &recorder_->track("host") : tracks_.front();
  std::vector<const Track*> all(tracks_.begin(), tracks_.end());
  if (replicas_->threaded()) all.push_back(host_track_);
  phases_ = std::make_unique<PhaseClock>(std::move(all));
}

const KernelLibrary& Session::kernels(int replica) const {
  return kernels_ != nullptr ? *kernels_ : replicas_->kernels(replica);
}

Device* Session::batch_memory() const {
  return replicas_->batch_memory();
}

void Session::make_executors(std::span<ExecutorOrder> orders) {
  const PhaseScope start(*phases_, Phase::Start);
  const DistributeOptions distribution{
      .replicas = size(), .buckets = replicas_->buckets(), .memory = &bucket_memory_};
  for (ExecutorOrder& order : orders) {
    for (std::string& sentence : lockstep::remarks(order.graph)) {
      if (std::ranges::find(remarks_, sentence) == remarks_.end()) {
        remarks_.push_back(std::move(sentence));
      }
    }
    std::vector<std::unique_ptr<Pass>> passes;
    if (order.precision) passes.push_back(std::make_unique<MixedPrecision>(*order.precision));
    passes.push_back(std::make_unique<Distribute>(distribution));
    run_passes(order.graph, passes);
  }
  const std::vector<VariableRef> known = states_.front()->variables();
  const bool decides = !laid_out_ && trains(orders.front().graph);
  ensure(!decides || std::ssize(orders) == size(), "{} of {} replicas lay out their variables",
         orders.size(), size());
  const LayoutOf layout_of = [this](const Variable& variable) {
    const State& first = *states_.front();
    return first.has(variable) ? std::optional(first.layout(variable)) : std::nullopt;
  };
  // The first one decides what is open; the others follow, so that all lie alike.
  ExecutorOrder& first = orders.front();
  optimize(first.graph, kernels(first.replica), decides ? LayoutOf() : layout_of);
  if (decides) {
    lay_out(first.graph);
  } else {
    for (const auto& state : states_) state->add(first.graph);
  }
  std::vector<ExecutorOrder*> by_replica(static_cast<std::size_t>(size()), nullptr);
  for (ExecutorOrder& order : orders) {
    by_replica[static_cast<std::size_t>(order.replica)] = &order;
  }
  replicas_->run([&](int r) {
    ExecutorOrder* const order = by_replica[static_cast<std::size_t>(r)];
    if (order == nullptr) return;
    if (order != &first) optimize(order->graph, kernels(r), layout_of);
    order->executor = std::make_unique<Executor>(
        make_plan(std::move(order->graph), kernels(r)), kernels(r),
        *states_[static_cast<std::size_t>(r)],
        ExecutorOptions{.recorder = record_ ? recorder_.get() : nullptr,
                        .track = track(r).name(),
                        .host_track = host_track_->name(),
                        .compute_comm = replicas_->communicator(r, kComputeStream),
                        .gradient_comm = replicas_->communicator(r, kCommunicationStream)});
  });
  mirror_from_first(known);
}

std::unique_ptr<Executor> Session::make_executor(Graph graph) {
  ExecutorOrder order{.replica = 0, .graph = std::move(graph), .executor = {}};
  make_executors({&order, 1});
  return std::move(order.executor);
}

void Session::lay_out(const Graph& graph) {
  laid_out_ = true;
  for (int r = 0; r < size(); ++r) {
    std::unique_ptr<State>& state = states_[static_cast<std::size_t>(r)];
    const std::unique_ptr<State> before = std::exchange(state, nullptr);
    state = std::make_unique<State>(replicas_->device(r), seed_);
    state->add(graph);
    for (const VariableRef& variable : before->variables()) {
      state->add(variable);
      state->set(*variable, before->get(*variable));
    }
  }
  ++generation_;
}

void Session::add(const VariableRef& variable) {
  if (states_.front()->has(*variable)) return;
  const std::vector<VariableRef> known = states_.front()->variables();
  for (const auto& state : states_) state->add(variable);
  mirror_from_first(known);
}

// What is not among the known starts as the first replica has it, whatever an initialiser of the
// user's own drew on the others; sums start on the first alone.
void Session::mirror_from_first(std::span<const VariableRef> known) {
  if (size() == 1) return;
  const std::set<VariableRef> old(known.begin(), known.end());
  for (const VariableRef& variable : states_.front()->variables()) {
    if (!old.contains(variable)) mirror(variable);
  }
}

void Session::mirror(const VariableRef& variable) {
  const bool sum = variable->aggregation == Aggregation::Sum;
  const Tensor value =
      sum ? Tensor(variable->dtype, variable->shape) : states_.front()->get(*variable);
  for (std::size_t r = 1; r < states_.size(); ++r) states_[r]->set(*variable, value);
}

void Session::mirror_again() {
  for (const VariableRef& variable : states_.front()->variables()) {
    if (variable->aggregation == Aggregation::Mirrored) mirror(variable);
  }
}

Tensor Session::get(const VariableRef& variable) {
  add(variable);
  Tensor value = states_.front()->get(*variable);
  if (variable->aggregation == Aggregation::Mirrored || size() == 1) return value;
  for (std::size_t r = 1; r < states_.size(); ++r) add_to(value, states_[r]->get(*variable));
  return value;
}

void Session::set(const VariableRef& variable, const Tensor& value) {
  add(variable);
  states_.front()->set(*variable, value);
  const bool sum = variable->aggregation == Aggregation::Sum;
  for (std::size_t r = 1; r < states_.size(); ++r) {
    states_[r]->set(*variable, sum ? Tensor(variable->dtype, variable->shape) : value);
  }
}

void Session::take(Session& other, std::span<const VariableRef> variables) {
  for (const VariableRef& variable : variables) {
    if (other.has(*variable)) set(variable, other.get(variable));
  }
  step = std::max(step, other.step);
}

void Session::expect_mirrored() const {
  const State& first = *states_.front();
  for (const VariableRef& variable : first.variables()) {
    if (variable->aggregation != Aggregation::Mirrored) continue;
    const std::vector<std::byte> image = first.image(*variable);
    for (std::size_t r = 1; r < states_.size(); ++r) {
      ensure(image == states_[r]->image(*variable),
             "[replicas] {} is not the same on replica 0 ({}) and replica {} ({}) behind step {}",
             variable->name, replicas_->device(0).name(), r,
             replicas_->device(static_cast<int>(r)).name(), step);
    }
  }
}

bool trains(const Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(),
                     [](const Node& node) { return node.op == Op::Update; });
}

}  // namespace lockstep
