// Executor: runs a plan on one device, step after step. One thread at a time.
#pragma once

#include <memory>
#include <string_view>

#include "lockstep/exec/plan_memory.h"
#include "lockstep/exec/state.h"
#include "lockstep/exec/steps.h"
#include "lockstep/kernels/kernel.h"
#include "lockstep/plan/plan.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

class Executor {
 public:
  // Adds the plan's variables to the state where they are missing, allocates the arena, makes every
  // kernel and binds it. State, library, recorder and communicators must outlive the executor.
  Executor(Plan plan, const KernelLibrary& library, State& state, ExecutorOptions options = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // The host's memory of an input, to be filled before a run; of an output, to be read after it.
  // They stay where they are for the executor's life. On a device that runs behind the host, call
  // await_inputs before filling and wait before reading: outputs are those of the run that was
  // waited for.
  Tensor input(std::string_view name);
  Tensor output(std::string_view name) const;
  bool has_input(std::string_view name) const;
  // Has the next run read an input straight from memory of the caller's, where its bytes lie behind
  // `offset`. The memory is held until it was read, and must not be written to before. False, and
  // nothing is done, where the device cannot: it copies by itself from host memory of its own kind
  // (Device::allocate_host).
  bool lend(std::string_view name, const std::shared_ptr<Buffer>& memory, std::size_t offset);

  // One step: calls no allocator and creates nothing. On a device that runs
  // behind the host it returns when the step is issued, and wait() when it has run. An error that a
  // kernel finds in the data (a label out of range) is a DataError that names the node: here, or,
  // from such a device, in wait() or a later run().
  void run(Inputs inputs = Inputs::Filled) { steps_->run(inputs); }
  void await_inputs() { steps_->await_inputs(); }
  void wait() { steps_->wait(runs()); }
  // The run that was the runs()-th, while the one behind it may still be under way.
  void wait(std::uint64_t run) { steps_->wait(run); }
  std::uint64_t runs() const { return steps_->runs(); }  // 0 on the CPU
  // Of each step of the plan, see Steps::profile; empty on the CPU, where spans tell.
  std::vector<double> profile() { return steps_->profile(); }

  const Plan& plan() const { return plan_; }

 private:
  Plan plan_;
  std::unique_ptr<PlanMemory> memory_;
  std::unique_ptr<Steps> steps_;
};

}  // namespace lockstep
