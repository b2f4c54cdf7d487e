// Steps: the steps of a plan, bound to memory, and how a device runs them: one after the other by
// the calling thread (host_steps.h), or issued to streams and recorded (device_steps.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/exec/plan_memory.h"
#include "lockstep/kernels/kernel.h"
#include "lockstep/profile/recorder.h"

namespace lockstep {

struct ExecutorOptions {
  // With a recorder, each node leaves a span on the track of this name, and each sum over replicas
  // one on "<track> communication".
  Recorder* recorder = nullptr;
  std::string track = "replica 0";
  // Where the thread that asks for steps says what it does beside them; empty: on the same track.
  std::string host_track = {};
  // Where the replica is not alone: its communicators, one a stream.
  Communicator* compute_comm = nullptr;
  Communicator* gradient_comm = nullptr;
};

// What a node's spans are called.
std::string span_name(const Node& node);

// A step: a kernel, or, where replicas add up, a collective for each stretch of memory.
struct BoundStep {
  std::unique_ptr<Kernel> kernel;
  std::vector<std::unique_ptr<Collective>> sums;
  // What does not lie where the sums will, and has to be brought there.
  std::vector<Stream::Copy> copies;
  const char* name = "";
  bool waits = false;          // for the communication stream
  bool communication = false;  // belongs to that stream
  // Whether its values come from the compute stream alone, so that it can start at once.
  bool starts_early = true;
  std::int64_t started_ns = 0;
};

// Makes the kernels and collectives of a plan's steps and binds them. `fault` is where kernels of a
// device that runs behind the host say what they found; step s writes s + 1.
std::vector<BoundStep> bind_steps(const Plan& plan, const KernelLibrary& library,
                                  const PlanMemory& memory, const ExecutorOptions& options,
                                  Fault* fault = nullptr);

// Whether inputs were filled anew since the last run.
enum class Inputs { Filled, AsBefore };

class Steps {
 public:
  virtual ~Steps() = default;
  virtual void run(Inputs inputs) = 0;
  // How many runs there were, where a device runs behind the host.
  virtual std::uint64_t runs() const { return 0; }
  // Has the next run read an input, by its place in the graph, from memory of the caller's. False
  // where the device does not copy from there by itself.
  virtual bool lend(std::size_t /*input*/, const std::shared_ptr<Buffer>& /*memory*/,
                    std::size_t /*offset*/) {
    return false;
  }
  // Until the host's side of inputs may be written again.
  virtual void await_inputs() {}
  // Until a run, one of the last two, is over, and its outputs can be read.
  virtual void wait(std::uint64_t /*run*/) {}
  // Milliseconds of each step on its own, where a device runs behind the host and the spans of a
  // run do not tell. Runs each several times: values are worth nothing afterwards.
  virtual std::vector<double> profile() { return {}; }
};

// "[softmax] head: label 12 is outside [0, 10)": a DataError that names a step's node.
[[noreturn]] void fail_at(const Plan& plan, std::size_t step, const std::string& what);

}  // namespace lockstep
