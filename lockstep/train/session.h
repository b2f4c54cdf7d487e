// Session: where a model lives while it is used. A device, its kernels, the memory of the variables
// and the record of what ran. Models that one Function trains share a session.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/exec/executor.h"
#include "lockstep/exec/state.h"
#include "lockstep/kernels/kernel.h"
#include "lockstep/profile/recorder.h"

namespace lockstep {

struct SessionOptions {
  Device* device = nullptr;
  const KernelLibrary* kernels = nullptr;
  std::uint64_t seed = 0;
};

class Session {
 public:
  explicit Session(const SessionOptions& options);

  // Optimises and plans a graph and makes its executor. The first graph that updates parameters
  // decides how variables lie in memory: where they lay otherwise, they are moved, the generation
  // changes, and executors made before must be dropped.
  std::unique_ptr<Executor> make_executor(Graph graph);
  std::uint64_t generation() const { return generation_; }

  // The value of a variable, which is added, with its initial value, where it is new.
  Tensor get(const VariableRef& variable);
  void set(const VariableRef& variable, const Tensor& value);
  bool has(const Variable& variable) const { return state_->has(variable); }
  // Takes over values that another session has.
  void take(const Session& other, std::span<const VariableRef> variables);

  Device& device() const { return *device_; }
  Recorder& recorder() { return *recorder_; }
  // Everything that fit's thread does for the replica stands on this track.
  Track& track() { return recorder_->track(kTrack); }

  // Training steps run so far.
  std::int64_t step = 0;

 private:
  static constexpr const char* kTrack = "replica 0";
  void lay_out(const Graph& graph);

  std::vector<std::unique_ptr<CpuDevice>> owned_;
  Device* device_;
  const KernelLibrary* kernels_;
  std::uint64_t seed_;
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<State> state_;
  bool laid_out_ = false;
  std::uint64_t generation_ = 0;
};

// Whether a graph updates parameters.
bool trains(const Graph& graph);

}  // namespace lockstep
