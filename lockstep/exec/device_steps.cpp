#include "lockstep/exec/device_steps.h"

#include <algorithm>
#include <thread>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Inputs that tell a step its number are other ones every time, whoever else filled theirs.
constexpr std::size_t kAlwaysCopied = 64;  // bytes at most

}  // namespace

DeviceSteps::DeviceSteps(const Plan& plan, const KernelLibrary& library, const PlanMemory& memory,
                         Device& device, const ExecutorOptions& options)
    : plan_(plan),
      memory_(memory),
      device_(device),
      comms_{options.compute_comm, options.gradient_comm},
      fault_memory_(device.allocate_host(sizeof(Fault))),
      fault_(reinterpret_cast<Fault*>(fault_memory_->data())),
      bound_(bind_steps(plan, library, memory, options, fault_)),
      compute_(device.stream(kComputeStream)),
      communication_(device.stream(kCommunicationStream)),
      copies_(device.stream(kCommunicationStream + 1)),
      side_(device.stream(kCommunicationStream + 2)),
      inputs_read_(device.make_event(false)) {
  for (auto& event : done_) event = device.make_event(false);
  const bool alone = comms_[0] == nullptr && comms_[1] == nullptr;
  if (alone) divided_ = find_side_steps(plan, memory);
  find_outgoing(alone);
  if (options.recorder != nullptr) track_ = &options.recorder->track(options.track);
  recording_ = compute_.record([this] { issue(); });
}

// Whatever is still running uses memory that goes with this.
DeviceSteps::~DeviceSteps() {
  try {
    device_.enter();
    for (const auto& event : done_) event->wait();
  } catch (const Error&) {
    // It failed, and so it has ended; whoever asked for results was told.
  }
}

void DeviceSteps::run(Inputs inputs) {
  device_.enter();
  if (track_ != nullptr) clock_ns_ = now_ns();
  Event& last_but_one = *done_[runs_ % kAhead];
  await(last_but_one);
  look_for_faults();
  add_span("run step", SpanKind::Compute);
  bring_inputs(inputs);
  if (recording_ != nullptr) {
    recording_->launch(compute_);
  } else {
    issue();
  }
  last_but_one.record(compute_);
  ++runs_;
  add_span("launch step", SpanKind::Host);
}

void DeviceSteps::bring_inputs(Inputs inputs) {
  bool copied = false;
  const std::size_t turn = runs_ % kAhead;
  const auto wanted = [&](const PlanMemory::Mirrored& input) {
    return input.bytes > 0 && (inputs == Inputs::Filled || input.bytes <= kAlwaysCopied);
  };
  for (const PlanMemory::Mirrored& input : memory_.inputs()) {
    if (!wanted(input)) continue;
    copies_.copy(input.landing[turn], input.host, input.bytes);
    copied = true;
  }
  if (!copied) return;
  inputs_read_->record(copies_);
  compute_.wait_for(copies_);
  for (const PlanMemory::Mirrored& input : memory_.inputs()) {
    if (wanted(input)) compute_.copy(input.device, input.landing[turn], input.bytes);
  }
}

// An output goes to the host while the steps run that stand behind the last that writes it: its
// memory is its own to the end.
void DeviceSteps::find_outgoing(bool early) {
  for (const PlanMemory::Mirrored& output : memory_.outputs()) {
    Outgoing outgoing{.output = output, .behind = bound_.size()};
    for (std::size_t s = 0; early && s < bound_.size(); ++s) {
      const Node& node = plan_.graph.node(plan_.steps[s].node);
      const bool writes = std::ranges::any_of(
          node.outputs, [&](ValueId id) { return memory_.address(id) == output.device; });
      if (writes) outgoing.behind = s;
    }
    outgoing_.push_back(outgoing);
  }
}

// Copies the outputs that are ready behind a step, which ran on `from`; at the end by itself.
bool DeviceSteps::send_outputs(std::size_t behind, Stream& from) {
  const bool early = behind < bound_.size();
  bool any = false;
  for (const Outgoing& each : outgoing_) {
    if (each.behind != behind) continue;
    if (early && !any) copies_.wait_for(from);
    Stream& by = early ? copies_ : from;
    by.copy(each.output.host, each.output.device, each.output.bytes);
    any = true;
  }
  return any;
}

void DeviceSteps::issue() {
  bool communicated = false;
  bool sent_early = false;
  compute_ahead_ = true;
  if (divided_.any) side_.wait_for(compute_);
  for (std::size_t s = 0; s < bound_.size(); ++s) {
    BoundStep& bound = bound_[s];
    if (bound.communication) {
      if (compute_ahead_) communication_.wait_for(compute_);
      compute_ahead_ = false;
      communicated = true;
    } else {
      if (bound.waits && communicated) compute_.wait_for(communication_);
      compute_ahead_ = true;
    }
    if (divided_.any && divided_.joins[s]) compute_.wait_for(side_);
    Stream& stream = stream_of(s);
    issue_step(bound, stream);
    if (divided_.any && divided_.forks[s]) side_.wait_for(compute_);
    sent_early = send_outputs(s, stream) || sent_early;
  }
  if (divided_.any) compute_.wait_for(side_);
  if (communicated) compute_.wait_for(communication_);
  send_outputs(bound_.size(), compute_);
  if (sent_early) compute_.wait_for(copies_);
}

Stream& DeviceSteps::stream_of(std::size_t step) {
  if (bound_[step].communication) return communication_;
  return divided_.any && divided_.beside[step] ? side_ : compute_;
}

void DeviceSteps::issue_step(BoundStep& bound, Stream& stream) {
  if (bound.kernel != nullptr) {
    bound.kernel->run(stream);
    return;
  }
  for (const BoundStep::Copy& copy : bound.copies) stream.copy(copy.to, copy.from, copy.bytes);
  for (const auto& sum : bound.sums) sum->issue(stream);
}

void DeviceSteps::await_inputs() {
  device_.enter();
  inputs_read_->wait();
}

void DeviceSteps::wait() {
  if (runs_ == 0) return;
  device_.enter();
  if (track_ != nullptr) clock_ns_ = now_ns();
  await(*done_[(runs_ - 1) % kAhead]);
  add_span("run step", SpanKind::Compute);
  look_for_faults();
}

std::vector<double> DeviceSteps::profile() {
  constexpr int kRuns = 10;
  wait();
  const std::unique_ptr<Event> begin = device_.make_event(true);
  const std::unique_ptr<Event> end = device_.make_event(true);
  std::vector<double> ms;
  for (BoundStep& bound : bound_) {
    Stream& stream = bound.communication ? communication_ : compute_;
    issue_step(bound, stream);
    begin->record(stream);
    for (int run = 0; run < kRuns; ++run) issue_step(bound, stream);
    end->record(stream);
    end->wait();
    ms.push_back(end->ms_since(*begin) / kRuns);
  }
  return ms;
}

// Alone, the driver waits; among replicas, another one's failure ends it.
void DeviceSteps::await(Event& event) {
  if (comms_[0] == nullptr && comms_[1] == nullptr) {
    event.wait();
    return;
  }
  while (!event.reached()) {
    for (Communicator* comm : comms_) {
      if (comm != nullptr) comm->check();
    }
    std::this_thread::yield();
  }
  for (Communicator* comm : comms_) {
    if (comm != nullptr) comm->check();
  }
}

void DeviceSteps::look_for_faults() {
  const std::int64_t step = fault_->step;
  if (step == 0) return;
  const auto index = static_cast<std::size_t>(step - 1);
  const std::string what = bound_[index].kernel->explain(fault_->value);
  for (const auto& event : done_) event->wait();
  fault_->step = 0;
  fail_at(plan_, index, what);
}

void DeviceSteps::add_span(const char* name, SpanKind kind) {
  if (track_ == nullptr) return;
  const std::int64_t now = now_ns();
  track_->add(name, kind, clock_ns_, now);
  clock_ns_ = now;
}

}  // namespace lockstep
