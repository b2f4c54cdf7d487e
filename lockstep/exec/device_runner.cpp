#include "lockstep/exec/device_runner.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Small inputs, such as a step's number, change in every run, even if the caller filled nothing.
constexpr std::size_t kAlwaysCopied = 64;  // bytes at most

// Whether a node's kernel checks its data for errors: labels and indices.
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

DeviceRunner::DeviceRunner(const Plan& plan, const KernelLibrary& library, const PlanMemory& memory,
                           Device& device, const ExecutorOptions& options)
    : plan_(plan),
      library_(library),
      memory_(memory),
      options_(options),
      device_(device),
      comms_{options.compute_comm, options.gradient_comm},
      alone_(comms_[0] == nullptr && comms_[1] == nullptr),
      fault_memory_(memory.allocate(sizeof(Fault))),
      fault_copies_(device.allocate_host(kAhead * sizeof(Fault))),
      compute_(device.stream(kComputeStream)),
      communication_(on_one_device(options) ? compute_ : device.stream(kCommunicationStream)),
      copies_(device.stream(kCommunicationStream + 1)),
      side_(device.stream(kCommunicationStream + 2)),
      fetches_(device.stream(kCommunicationStream + 3)),
      stores_(device.stream(kCommunicationStream + 4)),
      bound_inputs_(memory.inputs().size()) {
  for (const Instruction& instruction : plan.instructions) {
    if (instruction.staging_bytes > 0) stored_.push_back(device.make_event(false));
  }
  // Updates beside the backward pass have the communication stream for themselves.
  if (alone_ && stored_.empty()) divided_ = find_side_streams(plan, memory);
  bind_instructions_and_results();
  const bool timed = options.recorder != nullptr;
  if (timed) clock_ = std::make_unique<RunClock>(options, &memory.rank().last_run_end_ns());
  if (timed && !alone_) {
    Track& track = options.recorder->track(options.track + " communication");
    const auto stamped = std::ranges::count_if(bound_, [](const BoundInstruction& instruction) {
      return instruction.waits_for >= 0 || !instruction.collectives.empty();
    });
    comm_timer_ = std::make_unique<CommTimer>(device, static_cast<std::size_t>(stamped) + 1, track);
  }
  for (const BoundInstruction& bound : bound_) {
    if (bound.waits_for >= 0) passed_[bound.waits_for] = device.make_event(false);
  }
  for (Run& run : in_flight_) {
    run.copied = device.make_event(timed);
    run.done = device.make_event(timed);
  }
  record();
}

void DeviceRunner::bind_again() {
  for (auto& recording : recordings_) recording.reset();
  bind_instructions_and_results();
  record();
}

void DeviceRunner::bind_instructions_and_results() {
  bound_.clear();
  bound_ = bind_instructions(plan_, library_, memory_, options_,
                             reinterpret_cast<Fault*>(fault_memory_->data()));
  outgoing_.clear();
  find_outgoing();
}

void DeviceRunner::record() {
  for (std::size_t turn = 0; turn < kAhead; ++turn) {
    recordings_[turn] = compute_.record([this, turn] { issue(turn); });
  }
  recorded_with_ = generation();
}

// Of both communicators; it grows when either does.
std::uint64_t DeviceRunner::generation() const {
  std::uint64_t sum = 0;
  for (const Communicator* comm : comms_) sum += comm != nullptr ? comm->generation() : 0;
  return sum;
}

// Whatever is still running uses memory that is freed with this.
DeviceRunner::~DeviceRunner() {
  try {
    device_.make_current();
    for (const Run& run : in_flight_) run.done->wait();
  } catch (const Error&) {
    // It failed, so it has ended; the caller that asked for results was told.
  }
}

void DeviceRunner::run(Inputs inputs) {
  device_.make_current();
  if (generation() != recorded_with_) record();
  const std::uint64_t next = runs_ + 1;
  if (next > kAhead) {
    await_run(next - kAhead);
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

bool DeviceRunner::bind_input(std::size_t input, const std::shared_ptr<Buffer>& memory,
                              std::size_t offset) {
  const std::size_t bytes = memory_.inputs()[input].bytes;
  const bool of_its_kind = &memory->device() == &fault_copies_->device();
  if (!of_its_kind || bytes <= kAlwaysCopied) return false;
  ensure(offset + bytes <= memory->bytes(), "an input of {} bytes is bound to {} of {} bytes",
         bytes, memory->bytes() - offset, memory->bytes());
  bound_inputs_[input] = {memory, offset};
  return true;
}

void DeviceRunner::bring_inputs(Run& run, Inputs inputs) {
  run.copies = false;
  const auto wanted = [&](const PlanMemory::Input& input) {
    return input.bytes > 0 && (inputs == Inputs::Filled || input.bytes <= kAlwaysCopied);
  };
  const bool all_anew = memory_.enter_arena();
  for (std::size_t i = 0; i < bound_inputs_.size(); ++i) {
    const PlanMemory::Input& input = memory_.inputs()[i];
    if (!wanted(input)) continue;
    BoundInput& bound = bound_inputs_[i];
    const std::byte* const from =
        bound.memory != nullptr ? bound.memory->data() + bound.offset : input.host;
    copies_.copy(input.staging, from, input.bytes);
    if (bound.memory != nullptr) run.input_buffers.push_back(std::move(bound.memory));
    run.copies = true;
  }
  if (!run.copies && !all_anew) return;
  run.copied->record(copies_);
  compute_.wait_for(copies_);
  for (const PlanMemory::Input& input : memory_.inputs()) {
    const bool lost = all_anew && input.bytes > 0;
    if (lost || wanted(input)) compute_.copy(input.device, input.staging, input.bytes);
  }
  copies_.wait_for(compute_);  // the next inputs must not overtake
}

// Without other replicas, a result is copied to the host as soon as the last instruction that
// writes it has run, while later ones still run: nothing else uses its memory until the end of the
// step.
void DeviceRunner::find_outgoing() {
  const auto add = [&](const std::byte* from, std::array<std::byte*, kAhead> to, std::size_t bytes,
                       const auto& writes) {
    Outgoing outgoing{.from = from, .to = to, .bytes = bytes, .after = bound_.size()};
    for (std::size_t s = 0; alone_ && s < bound_.size(); ++s) {
      if (writes(plan_.graph.node(plan_.instructions[s].node))) outgoing.after = s;
    }
    outgoing_.push_back(outgoing);
  };
  if (std::ranges::any_of(plan_.graph.nodes(), may_find_faults)) {
    std::byte* const faults = fault_copies_->data();
    add(fault_memory_->data(), {faults, faults + sizeof(Fault)}, sizeof(Fault), may_find_faults);
  }
  for (const PlanMemory::Output& output : memory_.outputs()) {
    if (output.bytes == 0) continue;
    add(output.device, {output.staging[0], output.staging[1]}, output.bytes, [&](const Node& node) {
      return std::ranges::any_of(node.outputs,
                                 [&](ValueId id) { return memory_.address(id) == output.device; });
    });
  }
}

// Copies the results that are ready after an instruction, which ran on `from`, on a separate
// stream.
bool DeviceRunner::send_after(std::size_t instruction, Stream& from, std::size_t turn) {
  bool any = false;
  for (const Outgoing& each : outgoing_) {
    if (each.after != instruction) continue;
    if (!any) copies_.wait_for(from);
    copies_.copy(each.to[turn], each.from, each.bytes);
    any = true;
  }
  return any;
}

// Copies what is ready only at the end, on several streams at once where there are any: each copy
// is small and costs mostly latency.
void DeviceRunner::send_rest(std::size_t turn) {
  Stream* const ways[] = {&compute_, &communication_, &copies_};
  const std::size_t count = &communication_ == &compute_ ? 1 : std::size(ways);
  std::size_t used = 0;
  for (const Outgoing& each : outgoing_) {
    if (each.after < bound_.size()) continue;
    Stream& way = *ways[used % count];
    if (used > 0 && used < count) way.wait_for(compute_);
    way.copy(each.to[turn], each.from, each.bytes);
    ++used;
  }
  for (std::size_t i = 1; i < std::min(used, count); ++i) compute_.wait_for(*ways[i]);
}

void DeviceRunner::issue(std::size_t turn) {
  bool sent_early = false;
  compute_ahead_ = true;
  communicated_ = awaited_ = -1;
  if (comm_timer_ != nullptr) comm_timer_->begin(turn);
  if (divided_.any) side_.wait_for(compute_);
  staged_ = 0;
  const bool stages = !stored_.empty() && &communication_ != &compute_;
  if (stages) fetches_.wait_for(compute_);
  for (std::size_t s = 0; s < bound_.size(); ++s) {
    BoundInstruction& bound = bound_[s];
    if (divided_.any && divided_.joins[s]) {
      compute_.wait_for(side_);
      compute_ahead_ = true;  // and so the communication stream waits for it, too
    }
    if (bound.communication) {
      if (compute_ahead_) communication_.wait_for(compute_);
      compute_ahead_ = false;
      communicated_ = static_cast<int>(s);
    } else {
      if (bound.waits_for >= 0) await_communication(bound.waits_for);
      compute_ahead_ = true;
    }
    Stream& stream = stream_of(s);
    if (comm_timer_ != nullptr && !bound.collectives.empty()) {
      const bool exposed = &stream == &compute_;
      comm_timer_->collective(stream, exposed, bound.name,
                              [&] { issue_instruction(bound, stream); });
    } else if (!bound.fetches.empty()) {
      issue_staged(bound, stream);
    } else {
      issue_instruction(bound, stream);
    }
    if (divided_.any && divided_.forks[s]) {
      side_.wait_for(compute_);
      if (communicated_ > awaited_) side_.wait_for(communication_);
    }
    if (&communication_ != &compute_ && passed_.contains(static_cast<int>(s))) {
      passed_.at(static_cast<int>(s))->record(communication_);
    }
    sent_early = send_after(s, stream, turn) || sent_early;
  }
  if (divided_.any) compute_.wait_for(side_);
  await_communication(communicated_);
  if (stages) {
    compute_.wait_for(fetches_);
    compute_.wait_for(stores_);
  }
  if (comm_timer_ != nullptr) comm_timer_->end(compute_);
  if (sent_early) compute_.wait_for(copies_);
  send_rest(turn);
}

// Makes the compute stream wait for the communication stream up to this instruction, unless it
// already has.
void DeviceRunner::await_communication(int instruction) {
  if (instruction <= awaited_ || &communication_ == &compute_) return;
  const auto wait = [&] {
    if (instruction == communicated_) {
      compute_.wait_for(communication_);
    } else {
      compute_.wait_for(*passed_.at(instruction));
    }
  };
  if (comm_timer_ != nullptr) {
    comm_timer_->wait(compute_, wait);
  } else {
    wait();
  }
  awaited_ = instruction;
}

Stream& DeviceRunner::stream_of(std::size_t instruction) {
  if (bound_[instruction].communication) return communication_;
  return divided_.any && divided_.beside[instruction] ? side_ : compute_;
}

void DeviceRunner::issue_instruction(BoundInstruction& bound, Stream& stream) {
  if (bound.kernel != nullptr) {
    stream.copy_all(bound.fetches);
    bound.kernel->run(stream);
    stream.copy_all(bound.stores);
    return;
  }
  stream.copy_all(bound.copies);
  for (const auto& collective : bound.collectives) collective->issue(stream);
}

// The two staging buffers are used in turns: slots come while those of the update before are
// updated and those of the one before it go back. Replicas on one device are one chain, without
// branches.
void DeviceRunner::issue_staged(BoundInstruction& bound, Stream& stream) {
  constexpr std::size_t kBuffers = 2;
  if (&communication_ == &compute_) return issue_instruction(bound, stream);
  const std::size_t number = staged_++;
  if (number >= kBuffers) fetches_.wait_for(*stored_[number - kBuffers]);
  fetches_.copy_all(bound.fetches);
  stream.wait_for(fetches_);
  bound.kernel->run(stream);
  stores_.wait_for(stream);
  stores_.copy_all(bound.stores);
  stored_[number]->record(stores_);
}

void DeviceRunner::await_inputs() {
  if (runs_ == 0 || !at(runs_).copies) return;
  device_.make_current();
  at(runs_).copied->wait();
  at(runs_).input_buffers.clear();
}

void DeviceRunner::wait(std::uint64_t run) {
  if (run == 0) return;
  ensure(run <= runs_ && run + kAhead > runs_, "run {} is awaited after run {}", run, runs_);
  device_.make_current();
  await_run(run);
  look_for_faults(run);
  if (shown_ == run) return;
  for (const PlanMemory::Output& output : memory_.outputs()) {
    if (output.bytes > 0) std::memcpy(output.host, output.staging[turn(run)], output.bytes);
  }
  shown_ = run;
}

void DeviceRunner::await_run(std::uint64_t run) {
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
                     .collectives = comm_timer_.get(),
                     .turn = turn(settled_ + 1)});
    }
    next.input_buffers.clear();
  }
}

std::vector<double> DeviceRunner::profile() {
  constexpr int kRuns = 10;
  wait(runs_);
  const std::unique_ptr<Event> begin = device_.make_event(true);
  const std::unique_ptr<Event> end = device_.make_event(true);
  std::vector<double> ms;
  for (BoundInstruction& bound : bound_) {
    Stream& stream = bound.communication ? communication_ : compute_;
    issue_instruction(bound, stream);
    begin->record(stream);
    for (int run = 0; run < kRuns; ++run) issue_instruction(bound, stream);
    end->record(stream);
    end->wait();
    ms.push_back(end->ms_since(*begin) / kRuns);
  }
  return ms;
}

// Without other replicas, the driver waits; with them, the failure of another one ends the wait.
void DeviceRunner::await(Event& event) {
  if (alone_) {
    event.wait();
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  while (!event.reached()) {
    const auto waited = std::chrono::steady_clock::now() - begin;
    for (Communicator* comm : comms_) {
      if (comm == nullptr) continue;
      if (comm->timeout().count() > 0 && waited > comm->timeout()) {
        comm->abort(
            {.rank = comm->rank(),
             .kind = FailureKind::Comm,
             .message = fmt::format("a step did not end within {} ms: a rank is missing in it",
                                    comm->timeout().count())});
      }
      comm->check();
    }
    std::this_thread::yield();
  }
  for (Communicator* comm : comms_) {
    if (comm != nullptr) comm->check();
  }
}

// An error is reported once, and not again by a run that was in flight when it was found.
void DeviceRunner::look_for_faults(std::uint64_t run) {
  const auto* const copies = reinterpret_cast<const Fault*>(fault_copies_->data());
  const Fault fault = copies[turn(run)];
  if (fault.step == 0) return;
  const auto index = static_cast<std::size_t>(fault.step - 1);
  const std::string what = bound_[index].kernel->explain(fault.value);
  await_run(runs_);
  const Fault none;
  device_.copy(fault_memory_->data(), reinterpret_cast<const std::byte*>(&none), sizeof(Fault));
  std::memset(fault_copies_->data(), 0, fault_copies_->bytes());
  fail_at(plan_, index, what);
}

}  // namespace lockstep
