// StepMemory: what a training step has allocated while each of its instructions runs, by kind, and
// what is alive at the peak, by layer.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/plan/plan.h"

namespace lockstep {

enum class MemoryKind : std::uint8_t { Parameters, Optimizer, Gradients, Activations, Workspace };
inline constexpr std::size_t kMemoryKinds = 5;
const char* name_of(MemoryKind kind);

// What is allocated while an instruction runs, by kind.
struct MemoryAt {
  std::string instruction;
  std::array<double, kMemoryKinds> bytes = {};
};

// What a layer has of a kind at the peak.
struct PeakPart {
  std::string layer;
  double bytes = 0;
  MemoryKind kind = MemoryKind::Activations;
};

struct StepMemory {
  std::vector<MemoryAt> instructions;   // in the order of the plan
  std::vector<PeakPart> peak = {};      // the largest first
  std::optional<double> capacity = {};  // bytes that the device has
};
double total_bytes(const MemoryAt& at);

// From the plan alone: a value counts from the instruction that writes it to the last that reads
// it, and what a collective touches until the compute stream has waited for it. Values that share
// memory count once. Inputs, outputs and constants count as activations. Of plans with many
// instructions it keeps some, among them the peak.
StepMemory memory_of(const Plan& plan);

}  // namespace lockstep
