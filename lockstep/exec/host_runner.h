// HostRunner: the calling thread runs the instructions of a plan, one after another.
//
// Instructions of the communication stream wait in a queue and make progress between the others:
// data from other replicas is reduced, and what depends on it runs, while the backward pass
// continues. They are waited for only at the end, or before an instruction that needs them, which
// waits for those that it needs and no others.
#pragma once

#include "lockstep/exec/runner.h"

namespace lockstep {

class HostRunner final : public Runner {
 public:
  HostRunner(const Plan& plan, const KernelLibrary& library, const PlanMemory& memory,
             Device& device, const ExecutorOptions& options);
  void run(Inputs inputs) override;
  void bind_again() override;

 private:
  void start_collectives();
  void carry_on();
  void finish_up_to(int instruction);
  void finish_collectives(BoundInstruction& bound);
  void run_kernel(BoundInstruction& bound);

  const Plan& plan_;
  const KernelLibrary& library_;
  const PlanMemory& memory_;
  const ExecutorOptions options_;
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::vector<BoundInstruction> bound_;
  Track* track_ = nullptr;
  Track* communication_track_ = nullptr;

  // While a step runs.
  std::vector<std::size_t> communication_;  // the instructions of that stream, in order
  std::size_t max_in_flight_ = 0;
  std::size_t reached_ = 0;    // how many of them the order of all instructions has reached
  std::size_t started_ = 0;    // how many of those have been started, collectives only
  std::size_t done_ = 0;       // how many have finished
  std::size_t in_flight_ = 0;  // collectives in flight
  std::size_t current_ = 0;    // the instruction that runs, for messages
  std::int64_t clock_ns_ = 0;  // up to when the time is accounted for
};

}  // namespace lockstep
