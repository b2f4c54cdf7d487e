#include "lockstep/exec/host_runner.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep {

HostRunner::HostRunner(const Plan& plan, const KernelLibrary& library, const PlanMemory& memory,
                       Device& device, const ExecutorOptions& options)
    : plan_(plan),
      library_(library),
      memory_(memory),
      options_(options),
      device_(device),
      stream_(device.make_stream()) {
  if (options.recorder != nullptr) {
    track_ = &options.recorder->track(options.track);
    if (options.gradient_comm != nullptr) {
      communication_track_ = &options.recorder->track(options.track + " communication");
    }
  }
  if (options.gradient_comm != nullptr) {
    max_in_flight_ = static_cast<std::size_t>(options.gradient_comm->max_in_flight());
  }
  bind_again();
  for (std::size_t s = 0; s < bound_.size(); ++s) {
    if (bound_[s].communication) communication_.push_back(s);
  }
}

void HostRunner::bind_again() {
  bound_.clear();
  bound_ = bind_instructions(plan_, library_, memory_, options_);
}

void HostRunner::run(Inputs) {
  device_.make_current();
  reached_ = started_ = done_ = in_flight_ = 0;
  if (track_ != nullptr) clock_ns_ = now_ns();
  try {
    for (std::size_t s = 0; s < bound_.size(); ++s) {
      BoundInstruction& bound = bound_[s];
      if (bound.communication) {
        ++reached_;
        start_collectives();
      } else {
        if (bound.waits_for >= 0) finish_up_to(bound.waits_for);
        current_ = s;
        if (bound.kernel != nullptr) {
          run_kernel(bound);
        } else {
          for (const Stream::Copy& copy : bound.copies) std::memcpy(copy.to, copy.from, copy.bytes);
          for (const auto& collective : bound.collectives) collective->start();
          finish_collectives(bound);
        }
      }
      if (done_ < reached_) carry_on();
    }
    finish_up_to(static_cast<int>(bound_.size()));
  } catch (const DataError& error) {
    fail_at(plan_, current_, error.what());
  }
}

void HostRunner::run_kernel(BoundInstruction& bound) {
  for (const Stream::Copy& copy : bound.fetches) std::memcpy(copy.to, copy.from, copy.bytes);
  bound.kernel->run(*stream_);
  for (const Stream::Copy& copy : bound.stores) std::memcpy(copy.to, copy.from, copy.bytes);
  if (track_ == nullptr) return;
  const std::int64_t now = now_ns();
  track_->add(bound.name, SpanKind::Compute, clock_ns_, now);
  clock_ns_ = now;
}

// Starts the collectives that the order has reached, in the same order on every replica.
void HostRunner::start_collectives() {
  for (; started_ < reached_; ++started_) {
    BoundInstruction& bound = bound_[communication_[started_]];
    if (bound.kernel != nullptr) continue;
    if (!bound.starts_early && done_ < started_) return;
    if (in_flight_ > 0 && in_flight_ + bound.collectives.size() > max_in_flight_) return;
    in_flight_ += bound.collectives.size();
    for (const Stream::Copy& copy : bound.copies) std::memcpy(copy.to, copy.from, copy.bytes);
    if (communication_track_ != nullptr) bound.started_ns = now_ns();
    for (const auto& collective : bound.collectives) collective->start();
  }
}

// Finishes what can be finished without waiting.
void HostRunner::carry_on() {
  constexpr std::int64_t kWorthASpan = 1000;  // ns; polling the others costs less
  while (done_ < reached_) {
    current_ = communication_[done_];
    BoundInstruction& bound = bound_[current_];
    if (bound.kernel != nullptr) {
      run_kernel(bound);
    } else {
      const bool ended =
          std::ranges::all_of(bound.collectives, [](const auto& each) { return each->poll(); });
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
      in_flight_ -= bound.collectives.size();
    }
    ++done_;
    start_collectives();
  }
}

// Finishes what has been reached of the communication stream, up to this instruction.
void HostRunner::finish_up_to(int instruction) {
  for (;;) {
    carry_on();
    if (done_ == reached_ || static_cast<int>(communication_[done_]) > instruction) return;
    BoundInstruction& bound = bound_[communication_[done_]];
    finish_collectives(bound);
    if (communication_track_ != nullptr) {
      communication_track_->add(bound.name, SpanKind::Communication, bound.started_ns, clock_ns_);
    }
    in_flight_ -= bound.collectives.size();
    ++done_;
    start_collectives();
  }
}

// Waits for the slower replicas, then for the collectives themselves, and times the two separately.
void HostRunner::finish_collectives(BoundInstruction& bound) {
  for (const auto& collective : bound.collectives) collective->await_ranks();
  const std::int64_t together = track_ == nullptr ? 0 : now_ns();
  for (const auto& collective : bound.collectives) collective->finish();
  if (track_ == nullptr) return;
  const std::int64_t now = now_ns();
  track_->add(bound.name, SpanKind::Wait, clock_ns_, together);
  track_->add(bound.name, SpanKind::Communication, together, now);
  clock_ns_ = now;
}

}  // namespace lockstep
