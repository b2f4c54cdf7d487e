// Executor: runs a plan on one device, once per step. One thread at a time.
#pragma once

#include <memory>
#include <string_view>

#include "lockstep/exec/plan_memory.h"
#include "lockstep/exec/runner.h"
#include "lockstep/exec/state.h"
#include "lockstep/kernels/kernel.h"
#include "lockstep/plan/plan.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

class Executor {
 public:
  // Adds the plan's variables to the state where they are missing, makes the arena that the state's
  // executors share large enough, creates every kernel and binds it. State, library, recorder and
  // communicators must outlive the executor.
  Executor(Plan plan, const KernelLibrary& library, State& state, ExecutorOptions options = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // The host's memory of an input, to be filled before a run, or of an output, to be read after it.
  // Addresses are valid as long as the executor, and other executors of the state leave the
  // contents alone. On an asynchronous device, call await_inputs before filling and wait before
  // reading: outputs are those of the run that was waited for.
  Tensor input(std::string_view name);
  Tensor output(std::string_view name) const;
  bool has_input(std::string_view name) const;
  // Makes the next run read an input straight from the caller's memory, at `offset`. The memory is
  // held until it has been read, and must not be written before that. Returns false and does
  // nothing where the device cannot do this: it must be host memory of the device's own kind
  // (Device::allocate_host).
  bool bind_input(std::string_view name, const std::shared_ptr<Buffer>& memory, std::size_t offset);

  // One step. Allocates and creates nothing, except in the first run after another executor of the
  // state needed a larger arena: kernels are then bound again. On an asynchronous device it returns
  // when the step is issued, and wait() returns when it has run. An error that a kernel finds in
  // the data (a label out of range) is a DataError that names the node: thrown here, or, from such
  // a device, in wait() or a later run().
  void run(Inputs inputs = Inputs::Filled);
  void await_inputs() { runner_->await_inputs(); }
  void wait() { runner_->wait(runs()); }
  // Waits for the run that was the runs()-th, while the one after it may still be in flight.
  void wait(std::uint64_t run) { runner_->wait(run); }
  std::uint64_t runs() const { return runner_->runs(); }  // 0 on the CPU
  // Of each instruction of the plan, see Runner::profile; empty on the CPU, which has spans.
  std::vector<double> profile();

  const Plan& plan() const { return plan_; }

 private:
  void follow_arena();

  Plan plan_;
  std::unique_ptr<PlanMemory> memory_;
  std::unique_ptr<Runner> runner_;
};

}  // namespace lockstep
