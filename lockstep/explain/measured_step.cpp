#include "lockstep/explain/measured_step.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/collective.h"

namespace lockstep {
namespace {

// Which instructions, or nodes without one behind which instructions stand, a value comes from.
class Producers {
 public:
  explicit Producers(const Plan& plan)
      : plan_(plan), instruction_of_(plan.graph.nodes().size(), -1) {
    for (std::size_t i = 0; i < plan.instructions.size(); ++i) {
      instruction_of_[static_cast<std::size_t>(plan.instructions[i].node)] = static_cast<int>(i);
    }
  }

  void add(ValueId value, std::set<int>& to) const {
    const NodeId node = plan_.graph.info(value).producer;
    const int instruction = instruction_of_[static_cast<std::size_t>(node)];
    if (instruction >= 0) {
      to.insert(instruction);
      return;
    }
    for (const ValueId input : plan_.graph.node(node).inputs) add(input, to);
  }
  // The last of them; -1 if there is none.
  int last(ValueId value) const {
    std::set<int> all;
    add(value, all);
    return all.empty() ? -1 : *all.rbegin();
  }

 private:
  const Plan& plan_;
  std::vector<int> instruction_of_;  // by node
};

}  // namespace

std::vector<MeasuredInstruction> instructions_of(const Plan& plan) {
  const Producers producers(plan);
  std::vector<MeasuredInstruction> all;
  for (const Instruction& instruction : plan.instructions) {
    const Node& node = plan.graph.node(instruction.node);
    MeasuredInstruction& made = all.emplace_back();
    made.name = node.name;
    made.op = std::string(op_def(node.op).name);
    made.stream = instruction.stream;
    made.flops = instruction.cost.flops;
    made.bytes = instruction.cost.bytes;
    std::set<int> after(instruction.waits.begin(), instruction.waits.end());
    for (const ValueId input : node.inputs) producers.add(input, after);
    after.erase(static_cast<int>(all.size()) - 1);
    made.after.assign(after.begin(), after.end());
    if (!is_collective(node)) continue;
    made.collective = made.op;
    // Inputs of a gather are slices.
    const bool gathers = node.op == Op::AllGather;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const auto bytes =
          static_cast<std::int64_t>(plan.graph.bytes(gathers ? node.outputs[i] : node.inputs[i]));
      made.wire_bytes += bytes;
      made.carries.push_back({.bytes = bytes, .after = producers.last(node.inputs[i])});
    }
  }
  return all;
}

std::vector<MeasuredInstruction> micro_batched(const std::vector<MeasuredInstruction>& earlier,
                                               std::int64_t times,
                                               const std::vector<MeasuredInstruction>& last) {
  std::vector<MeasuredInstruction> all;
  const auto append = [&](const std::vector<MeasuredInstruction>& some, double as_many) {
    const int shift = static_cast<int>(all.size());
    for (const MeasuredInstruction& each : some) {
      MeasuredInstruction& made = all.emplace_back(each);
      for (int& before : made.after) before += shift;
      for (CarriedValue& value : made.carries) {
        if (value.after >= 0) value.after += shift;
      }
      made.seconds = {.fixed = as_many * each.seconds.fixed,
                      .per_sample = as_many * each.seconds.per_sample};
      made.flops *= as_many;
      made.bytes *= as_many;
    }
  };
  const bool communicates = std::ranges::any_of(
      earlier, [](const MeasuredInstruction& each) { return !each.collective.empty(); });
  if (communicates) {
    for (std::int64_t i = 0; i < times; ++i) append(earlier, 1);
  } else if (times > 0) {
    append(earlier, static_cast<double>(times));
  }
  append(last, 1);
  return all;
}

double instruction_seconds(const MeasuredStep& step, const MeasuredInstruction& instruction,
                           double samples, int ranks) {
  const double slices = static_cast<double>(step.ranks) / ranks;
  return instruction.seconds.at(samples) * (1 - instruction.sliced + instruction.sliced * slices);
}

double compute_seconds(const MeasuredStep& step, double samples, int ranks) {
  double seconds = 0;
  for (const MeasuredInstruction& each : step.instructions) {
    if (!each.collective.empty()) continue;
    seconds += instruction_seconds(step, each, samples, ranks > 0 ? ranks : step.ranks);
  }
  return seconds;
}

double memory_bytes(const MeasuredStep& step, double samples, int ranks) {
  const std::vector<RankedMemory>& all = step.memory_by_ranks;
  const auto exact = std::ranges::find(all, ranks, &RankedMemory::ranks);
  if (exact != all.end()) return exact->bytes.at(samples);
  // One rank alone is another plan, which says nothing about several.
  std::vector<RankedMemory> several;
  std::ranges::copy_if(all, std::back_inserter(several),
                       [](const RankedMemory& each) { return each.ranks > 1; });
  if (ranks == 1 || several.empty()) return step.memory.at(samples);
  if (several.size() == 1) return several.front().bytes.at(samples);
  // The line in 1 / ranks through the two that are nearest.
  std::size_t high = 1;
  while (high + 1 < several.size() && several[high].ranks < ranks) ++high;
  const RankedMemory& a = several[high - 1];
  const RankedMemory& b = several[high];
  const double part = (1.0 / a.ranks - 1.0 / ranks) / (1.0 / a.ranks - 1.0 / b.ranks);
  return std::max(0.0, std::lerp(a.bytes.at(samples), b.bytes.at(samples), part));
}

PerPiece fit_per_piece(const std::vector<double>& samples, const std::vector<double>& values) {
  ensure(!samples.empty() && samples.size() == values.size(), "[measure] {} sizes and {} values",
         samples.size(), values.size());
  // The slope of the line through the first point that is nearest to the others.
  double along = 0;
  double across = 0;
  for (std::size_t i = 1; i < samples.size(); ++i) {
    const double dx = samples[i] - samples[0];
    along += dx * (values[i] - values[0]);
    across += dx * dx;
  }
  const double most = values[0] / samples[0];
  const double slope = across > 0 ? std::clamp(along / across, 0.0, most) : most;
  return {.fixed = std::max(0.0, values[0] - slope * samples[0]), .per_sample = slope};
}

}  // namespace lockstep
