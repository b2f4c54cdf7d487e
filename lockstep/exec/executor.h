// Executor: runs a plan on one device, step after step. One thread at a time.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/exec/state.h"
#include "lockstep/kernels/kernel.h"
#include "lockstep/plan/plan.h"
#include "lockstep/profile/recorder.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

class Executor {
 public:
  // Adds the plan's variables to the state where they are missing, allocates the arena, makes every
  // kernel and binds it. State, library and recorder must outlive the executor. With a recorder,
  // each node leaves a span on the track of this name.
  Executor(Plan plan, const KernelLibrary& library, State& state, Recorder* recorder = nullptr,
           std::string_view track = "replica 0");
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // The memory of an input, to be filled before a run; of an output, to be read after it. They stay
  // where they are for the executor's life.
  Tensor input(std::string_view name);
  Tensor output(std::string_view name) const;
  bool has_input(std::string_view name) const;

  // One step: calls no allocator and creates nothing. An error that a kernel finds in the data (a
  // label out of range) is a DataError that names the node.
  void run();

  const Plan& plan() const { return plan_; }

 private:
  struct Bound;
  Tensor view(ValueId id) const;
  std::byte* address(ValueId id) const;
  const Node& leaf(ValueId id) const;

  Plan plan_;
  State& state_;
  std::shared_ptr<Buffer> arena_;
  std::unique_ptr<Stream> stream_;
  std::vector<Bound> bound_;
  Track* track_ = nullptr;
};

}  // namespace lockstep
