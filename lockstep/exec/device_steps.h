// DeviceSteps: the steps of a plan issued to the streams of a device that runs behind the host.
// They are recorded when they are made, where the device can: a step is then one launch, of
// forward, backward, sums over replicas, update, and the copies of results to the host.
//
// The host runs ahead of the device by one step at most. Inputs are copied on a stream of their
// own, while the step before still runs, to where they land; the step begins by taking them from
// there.
#pragma once

#include "lockstep/exec/side_steps.h"
#include "lockstep/exec/steps.h"

namespace lockstep {

class DeviceSteps final : public Steps {
 public:
  DeviceSteps(const Plan& plan, const KernelLibrary& library, const PlanMemory& memory,
              Device& device, const ExecutorOptions& options);
  ~DeviceSteps() override;

  void run(Inputs inputs) override;
  void await_inputs() override;
  void wait() override;
  std::vector<double> profile() override;

 private:
  static constexpr std::size_t kAhead = 2;  // runs that may be under way

  // An output, and the step behind which it is copied to the host; as many as there are steps: at
  // the end.
  struct Outgoing {
    PlanMemory::Mirrored output;
    std::size_t behind = 0;
  };

  void bring_inputs(Inputs inputs);
  void find_outgoing(bool early);
  bool send_outputs(std::size_t behind, Stream& from);
  void issue();
  void issue_step(BoundStep& bound, Stream& stream);
  Stream& stream_of(std::size_t step);
  void await(Event& event);
  void look_for_faults();
  void add_span(const char* name, SpanKind kind);

  const Plan& plan_;
  const PlanMemory& memory_;
  Device& device_;
  Communicator* const comms_[2];
  std::shared_ptr<Buffer> fault_memory_;
  Fault* fault_;
  std::vector<BoundStep> bound_;
  SideSteps divided_;  // nothing beside anything where there are other replicas
  std::vector<Outgoing> outgoing_;
  Stream& compute_;
  Stream& communication_;
  Stream& copies_;
  Stream& side_;
  std::unique_ptr<Event> inputs_read_;   // the host's side of inputs has been copied
  std::unique_ptr<Event> done_[kAhead];  // of the last runs, in turns
  std::unique_ptr<Recording> recording_;
  bool compute_ahead_ = false;  // of what the communication stream has waited for
  std::uint64_t runs_ = 0;
  Track* track_ = nullptr;
  std::int64_t clock_ns_ = 0;  // up to when the time is accounted for
};

}  // namespace lockstep
