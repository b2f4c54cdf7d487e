// DeviceSteps: the steps of a plan issued to the streams of a device that runs behind the host.
// They are recorded when they are made, where the device can: a step is then one launch, of
// forward, backward, sums over replicas, update, and the copies of results to the host.
//
// The host runs ahead of the device by one step at most. Inputs are copied on a stream of their
// own, while the step before still runs, to where they land; the step begins by taking them from
// there, and what lands next waits for that. Results land on the host in two places in turns, so
// that those of a run can be read while the next one is under way.
#pragma once

#include <array>

#include "lockstep/exec/run_clock.h"
#include "lockstep/exec/side_steps.h"
#include "lockstep/exec/steps.h"

namespace lockstep {

class DeviceSteps final : public Steps {
 public:
  DeviceSteps(const Plan& plan, const KernelLibrary& library, const PlanMemory& memory,
              Device& device, const ExecutorOptions& options);
  ~DeviceSteps() override;

  void run(Inputs inputs) override;
  std::uint64_t runs() const override { return runs_; }
  bool lend(std::size_t input, const std::shared_ptr<Buffer>& memory, std::size_t offset) override;
  void await_inputs() override;
  void wait(std::uint64_t run) override;
  std::vector<double> profile() override;

 private:
  static constexpr std::size_t kAhead = 2;  // runs that may be under way

  // A run, from its issue to the end of the one behind the next.
  struct Run {
    std::unique_ptr<Event> copied;  // the host's side of inputs
    std::unique_ptr<Event> done;
    bool copies = false;
    std::int64_t issued_ns = 0;
    std::vector<std::shared_ptr<Buffer>> lent;  // what inputs are read from
  };
  Run& at(std::uint64_t run) { return under_way_[run % under_way_.size()]; }
  std::size_t turn(std::uint64_t run) const { return run % kAhead; }

  // A result, where it lands in turns, and the step behind which it is copied there; as many as
  // there are steps: at the end.
  struct Outgoing {
    const std::byte* from = nullptr;
    std::array<std::byte*, kAhead> to = {};
    std::size_t bytes = 0;
    std::size_t behind = 0;
  };

  void record();
  std::uint64_t generation() const;
  void bring_inputs(Run& run, Inputs inputs);
  void find_outgoing(bool early);
  bool send_behind(std::size_t step, Stream& from, std::size_t turn);
  void send_rest(std::size_t turn);
  void issue(std::size_t turn);
  void issue_step(BoundStep& bound, Stream& stream);
  void await_communication();
  Stream& stream_of(std::size_t step);
  // Awaits runs up to this one, in order.
  void settle(std::uint64_t run);
  void await(Event& event);
  void look_for_faults(std::uint64_t run);

  const Plan& plan_;
  const PlanMemory& memory_;
  Device& device_;
  Communicator* const comms_[2];
  // What kernels say of the data; a run's copy of it is one of its results.
  std::shared_ptr<Buffer> fault_memory_;
  std::shared_ptr<Buffer> fault_copies_;
  std::vector<BoundStep> bound_;
  SideSteps divided_;  // nothing beside anything where there are other replicas
  std::vector<Outgoing> outgoing_;
  Stream& compute_;
  Stream& communication_;  // the same where all replicas are on one device
  Stream& copies_;
  Stream& side_;
  // What the next run reads in place of an input's host side, by input.
  struct Lent {
    std::shared_ptr<Buffer> memory;
    std::size_t offset = 0;
  };
  std::vector<Lent> lent_;
  std::array<Run, kAhead + 1> under_way_;
  std::unique_ptr<Recording> recordings_[kAhead];
  std::uint64_t recorded_with_ = 0;   // the communicators' generation
  bool compute_ahead_ = false;        // of what the communication stream has waited for
  bool communication_ahead_ = false;  // of what the compute stream has waited for
  std::uint64_t runs_ = 0;
  std::uint64_t settled_ = 0;  // runs that are known to be over
  std::uint64_t shown_ = 0;    // the run whose outputs the host sees
  std::unique_ptr<RunClock> clock_;
  std::unique_ptr<SumClock> sum_clock_;  // where there are other replicas
};

}  // namespace lockstep
