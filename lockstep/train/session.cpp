#include "lockstep/train/session.h"

#include <algorithm>

#include "lockstep/passes/pipeline.h"

namespace lockstep {

Session::Session(const SessionOptions& options)
    : device_(options.device),
      kernels_(options.kernels != nullptr ? options.kernels : &cpu_kernels()),
      seed_(options.seed),
      recorder_(std::make_unique<Recorder>()) {
  if (device_ == nullptr) {
    owned_ = make_cpu_devices(1);
    device_ = owned_.front().get();
  }
  state_ = std::make_unique<State>(*device_, seed_);
}

std::unique_ptr<Executor> Session::make_executor(Graph graph) {
  const bool decides = !laid_out_ && trains(graph);
  const LayoutOf layout_of = [this](const Variable& variable) {
    return state_->has(variable) ? std::optional(state_->layout(variable)) : std::nullopt;
  };
  optimize(graph, *kernels_, decides ? LayoutOf() : layout_of);
  Plan plan = make_plan(std::move(graph), *kernels_);
  if (decides) lay_out(plan.graph);
  return std::make_unique<Executor>(std::move(plan), *kernels_, *state_, recorder_.get(), kTrack);
}

void Session::lay_out(const Graph& graph) {
  laid_out_ = true;
  const std::unique_ptr<State> before = std::exchange(state_, nullptr);
  state_ = std::make_unique<State>(*device_, seed_);
  state_->add(graph);
  for (const VariableRef& variable : before->variables()) {
    state_->add(variable);
    state_->set(*variable, before->get(*variable));
  }
  ++generation_;
}

Tensor Session::get(const VariableRef& variable) {
  state_->add(variable);
  return state_->get(*variable);
}

void Session::set(const VariableRef& variable, const Tensor& value) {
  state_->add(variable);
  state_->set(*variable, value);
}

void Session::take(const Session& other, std::span<const VariableRef> variables) {
  for (const VariableRef& variable : variables) {
    if (other.has(*variable)) set(variable, other.state_->get(*variable));
  }
  step = std::max(step, other.step);
}

bool trains(const Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(),
                     [](const Node& node) { return node.op == Op::Update; });
}

}  // namespace lockstep
