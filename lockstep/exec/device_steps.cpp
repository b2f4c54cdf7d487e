#include "lockstep/exec/device_steps.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Inputs that tell a step its number are other ones every time, whoever else filled theirs.
constexpr std::size_t kAlwaysCopied = 64;  // bytes at most

// Whether a node's kernel looks for something wrong in the data: in labels and indices.
bool may_find_faults(const Node& node) {
  switch (node.op) {
    case Op::SparseCrossEntropy:
    case Op::SparseCrossEntropyGrad:
    case Op::Gather:
    case Op::GatherGrad:
      return true;
    default:
      return false;
  }
}

bool on_one_device(const ExecutorOptions& options) {
  const auto asked = {options.compute_comm, options.gradient_comm};
  return std::ranges::any_of(
      asked, [](const Communicator* comm) { return comm != nullptr && comm->on_one_device(); });
}

}  // namespace

DeviceSteps::DeviceSteps(const Plan& plan, const KernelLibrary& library, const PlanMemory& memory,
                         Device& device, const ExecutorOptions& options)
    : plan_(plan),
      memory_(memory),
      device_(device),
      comms_{options.compute_comm, options.gradient_comm},
      fault_memory_(device.allocate(sizeof(Fault))),
      fault_copies_(device.allocate_host(kAhead * sizeof(Fault))),
      bound_(bind_steps(plan, library, memory, options,
                        reinterpret_cast<Fault*>(fault_memory_->data()))),
      compute_(device.stream(kComputeStream)),
      communication_(on_one_device(options) ? compute_ : device.stream(kCommunicationStream)),
      copies_(device.stream(kCommunicationStream + 1)),
      side_(device.stream(kCommunicationStream + 2)),
      lent_(memory.inputs().size()) {
  const bool alone = comms_[0] == nullptr && comms_[1] == nullptr;
  if (alone) divided_ = find_side_steps(plan, memory);
  find_outgoing(alone);
  const bool timed = options.recorder != nullptr;
  if (timed) clock_ = std::make_unique<RunClock>(options);
  if (timed && !alone) {
    Track& track = options.recorder->track(options.track + " communication");
    const auto stamped = std::ranges::count_if(
        bound_, [](const BoundStep& step) { return step.waits || !step.sums.empty(); });
    sum_clock_ = std::make_unique<SumClock>(device, static_cast<std::size_t>(stamped) + 1, track);
  }
  for (Run& run : under_way_) {
    run.copied = device.make_event(timed);
    run.done = device.make_event(timed);
  }
  record();
}

void DeviceSteps::record() {
  for (std::size_t turn = 0; turn < kAhead; ++turn) {
    recordings_[turn] = compute_.record([this, turn] { issue(turn); });
  }
  recorded_with_ = generation();
}

// Of both communicators; it grows with each of theirs.
std::uint64_t DeviceSteps::generation() const {
  std::uint64_t sum = 0;
  for (const Communicator* comm : comms_) sum += comm != nullptr ? comm->generation() : 0;
  return sum;
}

// Whatever is still running uses memory that goes with this.
DeviceSteps::~DeviceSteps() {
  try {
    device_.enter();
    for (const Run& run : under_way_) run.done->wait();
  } catch (const Error&) {
    // It failed, and so it has ended; whoever asked for results was told.
  }
}

void DeviceSteps::run(Inputs inputs) {
  device_.enter();
  if (generation() != recorded_with_) record();
  const std::uint64_t next = runs_ + 1;
  if (next > kAhead) {
    settle(next - kAhead);
    look_for_faults(next - kAhead);
  }
  Run& run = at(next);
  run.issued_ns = clock_ != nullptr ? now_ns() : 0;
  bring_inputs(run, inputs);
  const auto& recording = recordings_[turn(next)];
  if (recording != nullptr) {
    recording->launch(compute_);
  } else {
    issue(turn(next));
  }
  run.done->record(compute_);
  runs_ = next;
  if (clock_ != nullptr) clock_->launched(run.issued_ns);
}

bool DeviceSteps::lend(std::size_t input, const std::shared_ptr<Buffer>& memory,
                       std::size_t offset) {
  const std::size_t bytes = memory_.inputs()[input].bytes;
  const bool of_its_kind = &memory->device() == &fault_copies_->device();
  if (!of_its_kind || bytes <= kAlwaysCopied) return false;
  ensure(offset + bytes <= memory->bytes(), "an input of {} bytes is lent {} of {}", bytes,
         memory->bytes() - offset, memory->bytes());
  lent_[input] = {memory, offset};
  return true;
}

void DeviceSteps::bring_inputs(Run& run, Inputs inputs) {
  run.copies = false;
  const auto wanted = [&](const PlanMemory::Input& input) {
    return input.bytes > 0 && (inputs == Inputs::Filled || input.bytes <= kAlwaysCopied);
  };
  for (std::size_t i = 0; i < lent_.size(); ++i) {
    const PlanMemory::Input& input = memory_.inputs()[i];
    if (!wanted(input)) continue;
    Lent& lent = lent_[i];
    const std::byte* const from =
        lent.memory != nullptr ? lent.memory->data() + lent.offset : input.host;
    copies_.copy(input.landing, from, input.bytes);
    if (lent.memory != nullptr) run.lent.push_back(std::move(lent.memory));
    run.copies = true;
  }
  if (!run.copies) return;
  run.copied->record(copies_);
  compute_.wait_for(copies_);
  for (const PlanMemory::Input& input : memory_.inputs()) {
    if (wanted(input)) compute_.copy(input.device, input.landing, input.bytes);
  }
  copies_.wait_for(compute_);  // what lands next must not overtake
}

// A result goes to the host while the steps run that stand behind the last that writes it: its
// memory is its own to the end.
void DeviceSteps::find_outgoing(bool early) {
  const auto add = [&](const std::byte* from, std::array<std::byte*, kAhead> to, std::size_t bytes,
                       const auto& writes) {
    Outgoing outgoing{.from = from, .to = to, .bytes = bytes, .behind = bound_.size()};
    for (std::size_t s = 0; early && s < bound_.size(); ++s) {
      if (writes(plan_.graph.node(plan_.steps[s].node))) outgoing.behind = s;
    }
    outgoing_.push_back(outgoing);
  };
  if (std::ranges::any_of(plan_.graph.nodes(), may_find_faults)) {
    std::byte* const faults = fault_copies_->data();
    add(fault_memory_->data(), {faults, faults + sizeof(Fault)}, sizeof(Fault), may_find_faults);
  }
  for (const PlanMemory::Output& output : memory_.outputs()) {
    if (output.bytes == 0) continue;
    add(output.device, {output.landing[0], output.landing[1]}, output.bytes, [&](const Node& node) {
      return std::ranges::any_of(node.outputs,
                                 [&](ValueId id) { return memory_.address(id) == output.device; });
    });
  }
}

// Copies the results that are ready behind a step, which ran on `from`, on a stream of their own.
bool DeviceSteps::send_behind(std::size_t step, Stream& from, std::size_t turn) {
  bool any = false;
  for (const Outgoing& each : outgoing_) {
    if (each.behind != step) continue;
    if (!any) copies_.wait_for(from);
    copies_.copy(each.to[turn], each.from, each.bytes);
    any = true;
  }
  return any;
}

// Copies what is ready at the end only. Side by side, where there are streams for it: each is
// small, and what it takes is mostly its beginning.
void DeviceSteps::send_rest(std::size_t turn) {
  Stream* const ways[] = {&compute_, &communication_, &copies_};
  const std::size_t count = &communication_ == &compute_ ? 1 : std::size(ways);
  std::size_t used = 0;
  for (const Outgoing& each : outgoing_) {
    if (each.behind < bound_.size()) continue;
    Stream& way = *ways[used % count];
    if (used > 0 && used < count) way.wait_for(compute_);
    way.copy(each.to[turn], each.from, each.bytes);
    ++used;
  }
  for (std::size_t i = 1; i < std::min(used, count); ++i) compute_.wait_for(*ways[i]);
}

void DeviceSteps::issue(std::size_t turn) {
  bool sent_early = false;
  compute_ahead_ = true;
  communication_ahead_ = false;
  if (sum_clock_ != nullptr) sum_clock_->begin(turn);
  if (divided_.any) side_.wait_for(compute_);
  for (std::size_t s = 0; s < bound_.size(); ++s) {
    BoundStep& bound = bound_[s];
    if (divided_.any && divided_.joins[s]) {
      compute_.wait_for(side_);
      compute_ahead_ = true;  // and so the communication stream waits for it, too
    }
    if (bound.communication) {
      if (compute_ahead_) communication_.wait_for(compute_);
      compute_ahead_ = false;
      communication_ahead_ = true;
    } else {
      if (bound.waits) await_communication();
      compute_ahead_ = true;
    }
    Stream& stream = stream_of(s);
    if (sum_clock_ != nullptr && !bound.sums.empty()) {
      const bool exposed = &stream == &compute_;
      sum_clock_->sum(stream, exposed, bound.name, [&] { issue_step(bound, stream); });
    } else {
      issue_step(bound, stream);
    }
    if (divided_.any && divided_.forks[s]) {
      side_.wait_for(compute_);
      if (communication_ahead_) side_.wait_for(communication_);
    }
    sent_early = send_behind(s, stream, turn) || sent_early;
  }
  if (divided_.any) compute_.wait_for(side_);
  await_communication();
  if (sum_clock_ != nullptr) sum_clock_->end(compute_);
  if (sent_early) compute_.wait_for(copies_);
  send_rest(turn);
}

// Where it has steps that the compute stream has not waited for.
void DeviceSteps::await_communication() {
  if (!communication_ahead_ || &communication_ == &compute_) return;
  const auto wait = [&] { compute_.wait_for(communication_); };
  if (sum_clock_ != nullptr) {
    sum_clock_->wait(compute_, wait);
  } else {
    wait();
  }
  communication_ahead_ = false;
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
  stream.copy_all(bound.copies);
  for (const auto& sum : bound.sums) sum->issue(stream);
}

void DeviceSteps::await_inputs() {
  if (runs_ == 0 || !at(runs_).copies) return;
  device_.enter();
  at(runs_).copied->wait();
  at(runs_).lent.clear();
}

void DeviceSteps::wait(std::uint64_t run) {
  if (run == 0) return;
  ensure(run <= runs_ && run + kAhead > runs_, "run {} is waited for behind run {}", run, runs_);
  device_.enter();
  settle(run);
  look_for_faults(run);
  if (shown_ == run) return;
  for (const PlanMemory::Output& output : memory_.outputs()) {
    if (output.bytes > 0) std::memcpy(output.host, output.landing[turn(run)], output.bytes);
  }
  shown_ = run;
}

void DeviceSteps::settle(std::uint64_t run) {
  for (; settled_ < run; ++settled_) {
    Run& next = at(settled_ + 1);
    if (clock_ == nullptr) {
      await(*next.done);
    } else {
      const std::int64_t begin = now_ns();
      const bool over = next.done->reached();
      await(*next.done);
      if (!over) clock_->waited(begin);
      clock_->ended({.issued_ns = next.issued_ns,
                     .copied = next.copies ? next.copied.get() : nullptr,
                     .done = next.done.get(),
                     .done_before = settled_ > 0 ? at(settled_).done.get() : nullptr,
                     .seen_ns = now_ns(),
                     .awaited = !over,
                     .sums = sum_clock_.get(),
                     .turn = turn(settled_ + 1)});
    }
    next.lent.clear();
  }
}

std::vector<double> DeviceSteps::profile() {
  constexpr int kRuns = 10;
  wait(runs_);
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
  const auto begin = std::chrono::steady_clock::now();
  while (!event.reached()) {
    const auto waited = std::chrono::steady_clock::now() - begin;
    for (Communicator* comm : comms_) {
      if (comm == nullptr) continue;
      if (comm->patience().count() > 0 && waited > comm->patience()) {
        comm->abort(fmt::format("a step did not end within {} ms: a rank is missing in it",
                                comm->patience().count()));
      }
      comm->check();
    }
    std::this_thread::yield();
  }
  for (Communicator* comm : comms_) {
    if (comm != nullptr) comm->check();
  }
}

// One that is found is not found again, nor in a run that was under way meanwhile.
void DeviceSteps::look_for_faults(std::uint64_t run) {
  const auto* const copies = reinterpret_cast<const Fault*>(fault_copies_->data());
  const Fault fault = copies[turn(run)];
  if (fault.step == 0) return;
  const auto index = static_cast<std::size_t>(fault.step - 1);
  const std::string what = bound_[index].kernel->explain(fault.value);
  settle(runs_);
  const Fault none;
  device_.copy(fault_memory_->data(), reinterpret_cast<const std::byte*>(&none), sizeof(Fault));
  std::memset(fault_copies_->data(), 0, fault_copies_->bytes());
  fail_at(plan_, index, what);
}

}  // namespace lockstep
