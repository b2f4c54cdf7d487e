// Executor: runs a plan on one device, step after step. One thread at a time.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/exec/state.h"
#include "lockstep/kernels/kernel.h"
#include "lockstep/plan/plan.h"
#include "lockstep/profile/recorder.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

struct ExecutorOptions {
  // With a recorder, each node leaves a span on the track of this name, and each sum over replicas
  // one on "<track> communication".
  Recorder* recorder = nullptr;
  std::string track = "replica 0";
  // Where the replica is not alone: its communicators, one a stream.
  Communicator* compute_comm = nullptr;
  Communicator* gradient_comm = nullptr;
};

class Executor {
 public:
  // Adds the plan's variables to the state where they are missing, allocates the arena, makes every
  // kernel and binds it. State, library, recorder and communicators must outlive the executor.
  Executor(Plan plan, const KernelLibrary& library, State& state, ExecutorOptions options = {});
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
  //
  // Steps of the communication stream wait in a queue and are carried on between the others: what
  // the other replicas have brought is added up, and what follows from it runs, while the backward
  // pass goes on. Only at the end, or before a step that needs them, are they waited for.
  void run();

  const Plan& plan() const { return plan_; }

 private:
  struct Bound;
  Tensor view(ValueId id) const;
  std::byte* address(ValueId id) const;
  const Node& leaf(ValueId id) const;
  void bind(const PlanStep& step, const KernelLibrary& library, const ExecutorOptions& options);
  void bind_sums(Bound& bound, const Node& node, Communicator& comm);
  void start_sums();
  void carry_on();
  void drain();
  void finish_sums(Bound& bound);
  void run_kernel(Bound& bound);

  Plan plan_;
  State& state_;
  std::shared_ptr<Buffer> arena_;
  std::unique_ptr<Stream> stream_;
  std::vector<Bound> bound_;
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
