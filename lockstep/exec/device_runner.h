// DeviceRunner: issues the instructions of a plan to the streams of an asynchronous device. Where
// the device can record them, they are recorded once, and a step is then one launch of forward
// pass, backward pass, collectives, update, and the copies of results to the host.
//
// The host runs ahead of the device by at most one step. Inputs are copied to staging buffers on a
// separate stream while the previous step still runs; a step begins by copying them from there, and
// the next inputs are staged after that. Results go to two host buffers in turns, so that those of
// one run can be read while the next one is in flight.
#pragma once

#include <array>
#include <map>

#include "lockstep/exec/run_clock.h"
#include "lockstep/exec/runner.h"
#include "lockstep/exec/side_streams.h"

namespace lockstep {

class DeviceRunner final : public Runner {
 public:
  DeviceRunner(const Plan& plan, const KernelLibrary& library, const PlanMemory& memory,
               Device& device, const ExecutorOptions& options);
  ~DeviceRunner() override;

  void run(Inputs inputs) override;
  void bind_again() override;
  std::uint64_t runs() const override { return runs_; }
  bool bind_input(std::size_t input, const std::shared_ptr<Buffer>& memory,
                  std::size_t offset) override;
  void await_inputs() override;
  void wait(std::uint64_t run) override;
  std::vector<double> profile() override;

 private:
  static constexpr std::size_t kAhead = 2;  // runs that may be in flight

  // A run, from its issue to the end of the second run after it.
  struct Run {
    std::unique_ptr<Event> copied;  // the host's side of inputs may be written again
    std::unique_ptr<Event> done;
    bool copies = false;
    std::int64_t issued_ns = 0;
    std::vector<std::shared_ptr<Buffer>> input_buffers;  // what inputs are read from
  };
  Run& at(std::uint64_t run) { return in_flight_[run % in_flight_.size()]; }
  std::size_t turn(std::uint64_t run) const { return run % kAhead; }

  // A result, the two host buffers it is copied to in turns, and the instruction after which it is
  // copied; the number of instructions means at the end.
  struct Outgoing {
    const std::byte* from = nullptr;
    std::array<std::byte*, kAhead> to = {};
    std::size_t bytes = 0;
    std::size_t after = 0;
  };

  void bind_instructions_and_results();
  void record();
  std::uint64_t generation() const;
  void bring_inputs(Run& run, Inputs inputs);
  void find_outgoing();
  bool send_after(std::size_t instruction, Stream& from, std::size_t turn);
  void send_rest(std::size_t turn);
  void issue(std::size_t turn);
  void issue_instruction(BoundInstruction& bound, Stream& stream);
  void issue_staged(BoundInstruction& bound, Stream& stream);
  void await_communication(int instruction);
  Stream& stream_of(std::size_t step);
  // Waits for the runs up to this one, in order.
  void await_run(std::uint64_t run);
  void await(Event& event);
  void look_for_faults(std::uint64_t run);

  const Plan& plan_;
  const KernelLibrary& library_;
  const PlanMemory& memory_;
  const ExecutorOptions options_;
  Device& device_;
  Communicator* const comms_[2];
  const bool alone_;  // there are no other replicas
  // Errors that kernels find in the data; each run copies this as one of its results.
  std::shared_ptr<Buffer> fault_memory_;
  std::shared_ptr<Buffer> fault_copies_;
  std::vector<BoundInstruction> bound_;
  SideStreams divided_;  // no side stream where there are other replicas
  std::vector<Outgoing> outgoing_;
  Stream& compute_;
  Stream& communication_;  // the same where all replicas are on one device
  Stream& copies_;
  Stream& side_;
  // Of updates whose slots are in host memory: they are copied to staging buffers and back on
  // streams of their own, since a bus carries both ways at once.
  Stream& fetches_;
  Stream& stores_;
  std::vector<std::unique_ptr<Event>> stored_;  // one for each such update
  std::size_t staged_ = 0;                      // of them, while a step is issued
  // What the next run reads instead of an input's host side, by input.
  struct BoundInput {
    std::shared_ptr<Buffer> memory;
    std::size_t offset = 0;
  };
  std::vector<BoundInput> bound_inputs_;
  std::array<Run, kAhead + 1> in_flight_;
  std::unique_ptr<Recording> recordings_[kAhead];
  std::uint64_t recorded_with_ = 0;  // the communicators' generation
  // Recorded after an instruction of the communication stream that another one waits for, by index.
  std::map<int, std::unique_ptr<Event>> passed_;
  // While a step is issued.
  bool compute_ahead_ = false;  // of what the communication stream has waited for
  int communicated_ = -1;       // the last instruction of the communication stream
  int awaited_ = -1;            // up to which one the compute stream has waited for them
  std::uint64_t runs_ = 0;
  std::uint64_t settled_ = 0;  // runs that are known to be over
  std::uint64_t shown_ = 0;    // the run whose outputs the host sees
  std::unique_ptr<RunClock> clock_;
  std::unique_ptr<CommTimer> comm_timer_;  // where there are other replicas
};

}  // namespace lockstep
