// MeasuredStep: a training step of one replica as it was measured on its device, alone: the
// instructions of its plan, what each of them waits for, and how long each takes for any number of
// samples. Whatever is predicted (another batch, more replicas, another network) is a replay of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/passes/memory_options.h"
#include "lockstep/plan/plan.h"

namespace lockstep {

// A quantity that grows with the samples of a piece: seconds, or bytes of memory.
struct PerPiece {
  double fixed = 0;
  double per_sample = 0;
  double at(double samples) const { return fixed + per_sample * samples; }
};

// A line through values that were measured for pieces of these sizes: it meets the first one
// exactly, and neither part is negative.
PerPiece fit_per_piece(const std::vector<double>& samples, const std::vector<double>& values);

// A value that a collective carries.
struct CarriedValue {
  std::int64_t bytes = 0;
  int after = -1;  // the instruction that computes it; -1: known before the step
};

struct MeasuredInstruction {
  std::string name = {};  // of the node
  std::string op = {};
  int stream = 0;               // kComputeStream or kCommunicationStream
  std::vector<int> after = {};  // instructions, on any stream, whose results or memory it needs
  PerPiece seconds = {};        // of computation; of a collective, what it costs without a partner
  std::string collective = {};  // "all_reduce", …; empty for computation
  // Of a collective: what each rank contributes or, where it gathers, what each has afterwards.
  std::int64_t wire_bytes = 0;
  std::vector<CarriedValue> carries = {};  // of a collective: its values, which may be regrouped
  double flops = 0;                        // for `batch` samples
  double bytes = 0;                        // read and written, for `batch` samples
  // Which part of its work is on slices, so that it shrinks as 1 / ranks.
  double sliced = 0;
};

// How much longer computation takes while so many devices of the host compute at once.
struct SideBySide {
  int copies = 1;
  double slowdown = 1;
};

// A collective between the devices of one host: seconds, and seconds per byte of the whole list.
struct HostCollective {
  int ranks = 2;
  double seconds = 0;
  double seconds_per_byte = 0;
  std::string op = "all_reduce";
};

// What a replica of so many needs on its device.
struct RankedMemory {
  int ranks = 1;
  PerPiece bytes = {};
};

struct MeasuredStep {
  std::string model;       // as the user named it; may be empty
  std::string device;      // "cpu", "cuda"
  std::string hardware;    // "NVIDIA H200", or the CPU's name and the number of cores
  std::string precision;   // "float32", "mixed_bfloat16", "mixed_float16"
  std::int64_t batch = 0;  // samples of the piece for which it was measured
  std::vector<MeasuredInstruction> instructions;  // in the order of the plan
  PerPiece host_seconds;                          // between two steps: launching, callbacks
  PerPiece memory;                                // bytes on the device, of one of `ranks`
  // How it saves memory. Each of its micro-batches has an equal part of the piece.
  MemoryOptions options;
  int ranks = 2;  // that its plan is for: matters where ranks have slices
  // For other numbers of ranks, from their plans, in their order; those of 2 ranks hold for more
  // where nothing is sliced. Empty: `memory` holds for all.
  std::vector<RankedMemory> memory_by_ranks;
  // How the measured steps varied: their seconds over the median, sorted.
  std::vector<double> jitter;
  // What several devices of this host do to one another; empty where that was not measured.
  std::vector<SideBySide> side_by_side;
  std::vector<HostCollective> host_collectives;
  double meet_seconds = 0;  // per step, for replicas of a process to begin and end it together
  // Seconds of a core per byte that it sends or receives over a network.
  double wire_s_per_byte = 0;
};

// The instructions of a plan with their dependencies, their FLOPs and bytes, and no times yet.
// Nodes that compute nothing (views, constants) have no instruction; what they pass on counts.
std::vector<MeasuredInstruction> instructions_of(const Plan& plan);

// A step of several micro-batches: the instructions of one before the last, so many times, and
// those of the last. Where the earlier ones do not communicate, each of their instructions stands
// for all of its repetitions.
std::vector<MeasuredInstruction> micro_batched(const std::vector<MeasuredInstruction>& earlier,
                                               std::int64_t times,
                                               const std::vector<MeasuredInstruction>& last);

// Of an instruction that computes, on one of so many ranks.
double instruction_seconds(const MeasuredStep& step, const MeasuredInstruction& instruction,
                           double samples, int ranks);
// Of computation alone, one instruction after another, for so many samples.
double compute_seconds(const MeasuredStep& step, double samples, int ranks = 0);  // 0: as measured

// Bytes on the device of one of so many ranks. Between numbers of ranks that were planned, what is
// sliced shrinks as 1 / ranks.
double memory_bytes(const MeasuredStep& step, double samples, int ranks);

// As JSON, which a run keeps in its folder under this name.
inline constexpr const char* kMeasuredStepFile = "measured.json";
std::string to_json(const MeasuredStep& step);
// DataError, naming `where` and what is wrong, for text that to_json did not write.
MeasuredStep measured_step_from_json(std::string_view text, std::string_view where);

}  // namespace lockstep
