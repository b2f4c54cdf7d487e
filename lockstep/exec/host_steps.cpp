#include "lockstep/exec/host_steps.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep {

HostSteps::HostSteps(const Plan& plan, const KernelLibrary& library, const PlanMemory& memory,
                     Device& device, const ExecutorOptions& options)
    : plan_(plan), device_(device), stream_(device.make_stream()) {
  if (options.recorder != nullptr) {
    track_ = &options.recorder->track(options.track);
    if (options.gradient_comm != nullptr) {
      communication_track_ = &options.recorder->track(options.track + " communication");
    }
  }
  if (options.gradient_comm != nullptr) {
    most_under_way_ = static_cast<std::size_t>(options.gradient_comm->most_under_way());
  }
  bound_ = bind_steps(plan_, library, memory, options);
  for (std::size_t s = 0; s < bound_.size(); ++s) {
    if (bound_[s].communication) communication_.push_back(s);
  }
}

void HostSteps::run(Inputs) {
  device_.enter();
  reached_ = started_ = done_ = under_way_ = 0;
  if (track_ != nullptr) clock_ns_ = now_ns();
  try {
    for (std::size_t s = 0; s < bound_.size(); ++s) {
      BoundStep& bound = bound_[s];
      if (bound.communication) {
        ++reached_;
        start_sums();
      } else {
        if (bound.waits) drain();
        current_ = s;
        if (bound.kernel != nullptr) {
          run_kernel(bound);
        } else {
          for (const Stream::Copy& copy : bound.copies) std::memcpy(copy.to, copy.from, copy.bytes);
          for (const auto& sum : bound.sums) sum->start();
          finish_sums(bound);
        }
      }
      if (done_ < reached_) carry_on();
    }
    drain();
  } catch (const DataError& error) {
    fail_at(plan_, current_, error.what());
  }
}

void HostSteps::run_kernel(BoundStep& bound) {
  bound.kernel->run(*stream_);
  if (track_ == nullptr) return;
  const std::int64_t now = now_ns();
  track_->add(bound.name, SpanKind::Compute, clock_ns_, now);
  clock_ns_ = now;
}

// Starts the sums that the order has come to, in their order on every replica.
void HostSteps::start_sums() {
  for (; started_ < reached_; ++started_) {
    BoundStep& bound = bound_[communication_[started_]];
    if (bound.kernel != nullptr) continue;
    if (!bound.starts_early && done_ < started_) return;
    if (under_way_ > 0 && under_way_ + bound.sums.size() > most_under_way_) return;
    under_way_ += bound.sums.size();
    for (const Stream::Copy& copy : bound.copies) std::memcpy(copy.to, copy.from, copy.bytes);
    if (communication_track_ != nullptr) bound.started_ns = now_ns();
    for (const auto& sum : bound.sums) sum->start();
  }
}

// Ends what can be ended without waiting.
void HostSteps::carry_on() {
  constexpr std::int64_t kWorthASpan = 1000;  // ns; a look at the others costs less
  while (done_ < reached_) {
    current_ = communication_[done_];
    BoundStep& bound = bound_[current_];
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
void HostSteps::drain() {
  for (;;) {
    carry_on();
    if (done_ == reached_) return;
    BoundStep& bound = bound_[communication_[done_]];
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
void HostSteps::finish_sums(BoundStep& bound) {
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
