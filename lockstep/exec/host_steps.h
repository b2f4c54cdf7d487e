// HostSteps: the steps of a plan run by the calling thread, one after the other.
//
// Steps of the communication stream wait in a queue and are carried on between the others: what the
// other replicas have brought is added up, and what follows from it runs, while the backward pass
// goes on. Only at the end, or before a step that needs them, are they waited for.
#pragma once

#include "lockstep/exec/steps.h"

namespace lockstep {

class HostSteps final : public Steps {
 public:
  HostSteps(const Plan& plan, const KernelLibrary& library, const PlanMemory& memory,
            Device& device, const ExecutorOptions& options);
  void run(Inputs inputs) override;

 private:
  void start_sums();
  void carry_on();
  void drain();
  void finish_sums(BoundStep& bound);
  void run_kernel(BoundStep& bound);

  const Plan& plan_;
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::vector<BoundStep> bound_;
  Track* track_ = nullptr;
  Track* communication_track_ = nullptr;

  // While a step runs.
  std::vector<std::size_t> communication_;  // the steps of that stream, in order
  std::size_t most_under_way_ = 0;
  std::size_t reached_ = 0;    // how many of them the order of all steps has come to
  std::size_t started_ = 0;    // how many of those have been started, sums only
  std::size_t done_ = 0;       // how many have ended
  std::size_t under_way_ = 0;  // collectives that were started and have not ended
  std::size_t current_ = 0;    // the step that runs, for messages
  std::int64_t clock_ns_ = 0;  // up to when the time is accounted for
};

}  // namespace lockstep
