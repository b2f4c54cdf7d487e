// StepsInFlight: the one runner's account of steps that were issued and whose results nobody has
// read yet. A device that runs behind the host still works on a step while the host prepares the
// next one, so one step stays in flight; on the CPU a step has ended when it was run.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "lockstep/runtime/compiled_step.h"

namespace lockstep {

// `Info` is what has to be known when a step ends.
template <class Info>
class StepsInFlight {
 public:
  using Finish = std::function<void(const CompiledStep& step, const Info& info)>;

  // `finish` reads the results of each step, in their order; it waits for them by reading.
  explicit StepsInFlight(Finish finish) : finish_(std::move(finish)) {}
  ~StepsInFlight() { abandon(); }
  StepsInFlight(StepsInFlight&&) = default;
  StepsInFlight& operator=(StepsInFlight&&) = default;

  // Finishes the step before `next`, which was just run. If it failed, `next` is abandoned.
  void finish_before(const CompiledStep& next) {
    try {
      finish();
    } catch (...) {
      next.abandon();
      throw;
    }
  }
  // A step that was just run. The step before it is finished now; so is this one on a device that
  // shares the host's memory.
  void add(Session& session, const CompiledStep& step, Info info) {
    finish_before(step);
    last_.emplace(step, std::move(info));
    if (session.device().shares_host_memory()) finish();
  }

  // Finishes the step in flight, if there is one.
  void finish() {
    if (!last_) return;
    const auto [step, info] = *std::exchange(last_, std::nullopt);
    finish_(step, info);
  }
  // The same, unless it is the step for these signatures: another one may have to be planned, and
  // what is planned is measured, which must not share the device.
  void finish_unless(std::span<const StepSignature> signatures) {
    if (last_ && !last_->first.is_for(signatures)) finish();
  }
  // Waits for it without reading results.
  void abandon() noexcept {
    if (last_) std::exchange(last_, std::nullopt)->first.abandon();
  }

 private:
  Finish finish_;
  std::optional<std::pair<CompiledStep, Info>> last_;
};

}  // namespace lockstep
