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
      inputs_read_(device.make_event(false)) {
  for (auto& event : done_) event = device.make_event(false);
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

void DeviceSteps::issue() {
  bool communicated = false;
  compute_ahead_ = true;
  for (BoundStep& bound : bound_) {
    if (bound.communication) {
      if (compute_ahead_) communication_.wait_for(compute_);
      compute_ahead_ = false;
      communicated = true;
    } else {
      if (bound.waits && communicated) compute_.wait_for(communication_);
      compute_ahead_ = true;
    }
    issue_step(bound);
  }
  if (communicated) compute_.wait_for(communication_);
  for (const PlanMemory::Mirrored& output : memory_.outputs()) {
    compute_.copy(output.host, output.device, output.bytes);
  }
}

void DeviceSteps::issue_step(BoundStep& bound) {
  Stream& stream = bound.communication ? communication_ : compute_;
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
    issue_step(bound);
    Stream& stream = bound.communication ? communication_ : compute_;
    begin->record(stream);
    for (int run = 0; run < kRuns; ++run) issue_step(bound);
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
