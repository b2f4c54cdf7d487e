// Runner: the instructions of a plan, bound to memory, and how a device runs them: one after
// another on the calling thread (host_runner.h), or issued to streams and recorded
// (device_runner.h).
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
  // With a recorder, each node leaves a span on the track of this name, and each collective one on
  // "<track> communication".
  Recorder* recorder = nullptr;
  std::string track = "replica 0";
  // Where the thread that issues steps records what else it does; empty: on the same track.
  std::string host_track = {};
  // With other replicas: its communicators, one per stream.
  Communicator* compute_comm = nullptr;
  Communicator* gradient_comm = nullptr;
};

// The name of a node's spans.
std::string span_name(const Node& node);

// A kernel, or, for a node that communicates, a collective for each contiguous range of memory.
struct BoundInstruction {
  std::unique_ptr<Kernel> kernel;
  std::vector<std::unique_ptr<Collective>> collectives;
  // What has to be copied first to where the collectives work.
  std::vector<Stream::Copy> copies;
  // Of an update whose slots are in host memory: to its staging buffer, and back.
  std::vector<Stream::Copy> fetches;
  std::vector<Stream::Copy> stores;
  const char* name = "";
  int waits_for = -1;          // an instruction of the communication stream, and all before it
  bool communication = false;  // belongs to that stream
  // Whether its values come from the compute stream alone, so that it can start at once.
  bool starts_early = true;
  std::int64_t started_ns = 0;
};

// Creates the kernels and collectives of a plan's instructions and binds them. `fault` is where
// kernels of an asynchronous device report errors; instruction i writes i + 1.
std::vector<BoundInstruction> bind_instructions(const Plan& plan, const KernelLibrary& library,
                                                const PlanMemory& memory,
                                                const ExecutorOptions& options,
                                                Fault* fault = nullptr);

// Whether inputs were filled since the last run.
enum class Inputs { Filled, AsBefore };

class Runner {
 public:
  virtual ~Runner() = default;
  virtual void run(Inputs inputs) = 0;
  // Creates and binds kernels and collectives again after values have moved (PlanMemory).
  virtual void bind_again() = 0;
  // How many runs there were, on an asynchronous device.
  virtual std::uint64_t runs() const { return 0; }
  // Makes the next run read an input, by its index in the graph, from the caller's memory. False if
  // the device cannot copy from there asynchronously.
  virtual bool bind_input(std::size_t /*input*/, const std::shared_ptr<Buffer>& /*memory*/,
                          std::size_t /*offset*/) {
    return false;
  }
  // Blocks until the host's side of inputs may be written again.
  virtual void await_inputs() {}
  // Blocks until a run, one of the last two, is over, and its outputs can be read.
  virtual void wait(std::uint64_t /*run*/) {}
  // Milliseconds that each instruction takes alone, for asynchronous devices, where the spans of a
  // run do not tell. Runs each several times: values are meaningless afterwards.
  virtual std::vector<double> profile() { return {}; }
};

// "[softmax] head: label 12 is outside [0, 10)": a DataError that names an instruction's node.
[[noreturn]] void fail_at(const Plan& plan, std::size_t instruction, const std::string& what);

}  // namespace lockstep
