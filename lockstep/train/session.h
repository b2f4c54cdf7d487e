// Session: where a model lives while it is used. The replicas, their kernels, the memory of the
// variables on each, and the record of what ran. Models that one Function trains share a session.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/exec/executor.h"
#include "lockstep/exec/state.h"
#include "lockstep/kernels/kernel.h"
#include "lockstep/profile/phase_clock.h"
#include "lockstep/profile/recorder.h"
#include "lockstep/strategy/distribute.h"
#include "lockstep/train/replicas.h"

namespace lockstep {

struct SessionOptions {
  std::shared_ptr<Replicas> replicas = {};  // none: one, on `device`
  Device* device = nullptr;                 // none: the first GPU, or all cores
  const KernelLibrary* kernels = nullptr;   // none: those of the devices
  std::uint64_t seed = 0;
  bool record = true;  // false: nodes leave no spans; to measure what recording costs
};

// An executor that is wanted: the graph of a step on a replica.
struct ExecutorOrder {
  int replica = 0;
  Graph graph = {};
  std::unique_ptr<Executor> executor = {};
  std::optional<DType> precision = {};  // the 16-bit type, in mixed precision
};

class Session {
 public:
  explicit Session(const SessionOptions& options);

  // Rounds, distributes, optimises and plans the graphs and makes their executors, on every replica
  // at the same time. The first graph that updates parameters decides how variables lie in memory,
  // on all replicas alike: where they lay otherwise, they are moved, the generation changes, and
  // executors made before must be dropped. Such a graph must be ordered for all replicas together.
  void make_executors(std::span<ExecutorOrder> orders);
  // The same for one graph and one replica.
  std::unique_ptr<Executor> make_executor(Graph graph);
  std::uint64_t generation() const { return generation_; }

  // The value of a variable, which is added, with its initial value, where it is new: what its
  // aggregation says of the replicas' values.
  Tensor get(const VariableRef& variable);
  // Afterwards get() gives this value: every replica has it, or, of a sum, the first one does and
  // the others have zeros.
  void set(const VariableRef& variable, const Tensor& value);
  bool has(const Variable& variable) const { return states_.front()->has(variable); }
  // Takes over values that another session has.
  void take(Session& other, std::span<const VariableRef> variables);
  // InternalError, naming the variable and the replicas, where a mirrored variable is not the same
  // bits on all of them.
  void expect_mirrored() const;

  // Calls f(replica) on every replica's thread, and leaves on their tracks what each did beside it.
  template <class F>
  void run(F&& f) {
    replicas_->run(std::forward<F>(f), tracks_);
  }
  // Gives all replicas the first one's values, where a step failed on its way: some may have made
  // more of the update than others.
  void mirror_again();

  Replicas& replicas() const { return *replicas_; }
  const std::shared_ptr<Replicas>& shared_replicas() const { return replicas_; }
  int size() const { return replicas_->size(); }
  Device& device() const { return replicas_->device(0); }
  // Where batches lie best: Replicas::batch_memory.
  Device* batch_memory() const;
  Recorder& recorder() { return *recorder_; }
  // What a replica does stands on its track. On a replica that is alone and run by the caller, so
  // does what the caller does for it (input, callbacks); else that stands on the track "host".
  Track& track(int replica) { return *tracks_[static_cast<std::size_t>(replica)]; }
  Track& host_track() { return *host_track_; }
  // What of the time went into planning, validation and saving. make_executors counts as a start.
  PhaseClock& phases() { return *phases_; }

  // Sentences for the user that the graphs carried (graph/ops/remark.h), each once.
  const std::vector<std::string>& remarks() const { return remarks_; }

  // Training steps run so far.
  std::int64_t step = 0;

 private:
  const KernelLibrary& kernels(int replica) const;
  void lay_out(const Graph& graph);
  // Adds what is missing, on every replica, with the first one's bits.
  void add(const VariableRef& variable);
  void mirror_from_first(std::span<const VariableRef> known);
  void mirror(const VariableRef& variable);

  std::shared_ptr<Replicas> replicas_;
  const KernelLibrary* kernels_;
  std::uint64_t seed_;
  bool record_;
  std::unique_ptr<Recorder> recorder_;
  std::vector<Track*> tracks_;
  Track* host_track_;
  std::unique_ptr<PhaseClock> phases_;
  std::vector<std::unique_ptr<State>> states_;  // one a replica
  std::vector<std::string> remarks_;
  BucketMemory bucket_memory_;
  bool laid_out_ = false;
  std::uint64_t generation_ = 0;
};

// Whether a graph updates parameters.
bool trains(const Graph& graph);

}  // namespace lockstep
