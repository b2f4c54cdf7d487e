#include "lockstep/exec/side_streams.h"

#include <algorithm>

#include "lockstep/graph/ops/pointwise.h"
#include "lockstep/graph/ops/state.h"

namespace lockstep {
namespace {

// Microseconds that an instruction takes, roughly: a launch, its memory and its arithmetic on a
// large GPU.
constexpr double kLaunch = 2.0;
constexpr double kBytes = 4e6;  // per microsecond
constexpr double kFlops = 1e8;  // per microsecond
constexpr double kShort = 4.0;  // whatever takes longer fills a GPU alone
constexpr double kSlack = 1.0;  // how much later than on the first stream an instruction may start

double duration(const Instruction& instruction) {
  return kLaunch + instruction.cost.bytes / kBytes + instruction.cost.flops / kFlops;
}

struct Range {
  const std::byte* begin;
  const std::byte* end;
  bool written;

  bool conflicts(const Range& other) const {
    return (written || other.written) && begin < other.end && other.begin < end;
  }
};

bool may_run_beside(const Instruction& instruction, const Node& node) {
  if (instruction.stream != kComputeStream) return false;
  switch (node.op) {
    case Op::MatMul:
    case Op::ReduceSum:
    case Op::ReduceMean:
    case Op::Pointwise:
    case Op::PointwiseAssign:
    case Op::Assign:
      return true;
    default:
      return is_elementwise(node.op);
  }
}

class Dividing {
 public:
  Dividing(const Plan& plan, const PlanMemory& memory) : plan_(plan) {
    for (const Instruction& instruction : plan.instructions)
      ranges_.push_back(ranges_of(instruction, memory));
    const std::size_t count = plan.instructions.size();
    result_ = {.beside = std::vector<bool>(count, false),
               .forks = std::vector<bool>(count, false),
               .joins = std::vector<bool>(count, false)};
    ends_.assign(count, 0.0);
  }

  SideStreams run() {
    for (int s = 0; s < count(); ++s) place(s);
    return std::move(result_);
  }

 private:
  int count() const { return static_cast<int>(plan_.instructions.size()); }
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }

  // What an instruction reads and writes: its outputs, and the variables that it changes.
  std::vector<Range> ranges_of(const Instruction& instruction, const PlanMemory& memory) const {
    const Node& node = plan_.graph.node(instruction.node);
    const std::vector<ValueId> changed = changed_variables(node);
    std::vector<Range> ranges;
    const auto add = [&](const std::byte* begin, std::size_t bytes, bool written) {
      if (bytes > 0) ranges.push_back({begin, begin + bytes, written});
    };
    for (ValueId id : node.inputs) {
      add(memory.address(id), plan_.graph.bytes(id), std::ranges::count(changed, id) > 0);
    }
    for (ValueId id : node.outputs) add(memory.address(id), plan_.graph.bytes(id), true);
    add(memory.workspace(instruction), instruction.workspace_bytes, true);
    return ranges;
  }

  bool depends(int later, int earlier) const {
    return std::ranges::any_of(ranges_[index(later)], [&](const Range& a) {
      return std::ranges::any_of(ranges_[index(earlier)],
                                 [&](const Range& b) { return a.conflicts(b); });
    });
  }

  // The last instruction of a stream before s that it depends on, or -1; none at or before `known`.
  int last_dependency(int s, bool beside, int known) const {
    for (int earlier = s - 1; earlier > known; --earlier) {
      if (result_.beside[index(earlier)] == beside && depends(s, earlier)) return earlier;
    }
    return -1;
  }

  // Moves an instruction to the second stream if it can start there while the first is busy.
  void place(int s) {
    const Instruction& instruction = plan_.instructions[index(s)];
    const Node& node = plan_.graph.node(instruction.node);
    const int on_first = last_dependency(s, false, -1);
    const int on_second = last_dependency(s, true, joined_);
    const double known = on_first < 0 ? 0.0 : ends_[index(on_first)];
    const bool small = duration(instruction) <= kShort && may_run_beside(instruction, node);
    const double start = std::max(known, second_free_);
    const bool waits = on_second >= 0;
    if (small && known < first_free_ && start < first_free_ + kSlack) {
      result_.beside[index(s)] = true;
      result_.any = true;
      if (on_first > forked_) {
        result_.forks[index(on_first)] = true;
        forked_ = on_first;
      }
      second_free_ = start + duration(instruction);
      ends_[index(s)] = second_free_;
      return;
    }
    if (waits) {
      result_.joins[index(s)] = true;
      joined_ = s;
      first_free_ = std::max(first_free_, second_free_);
    }
    first_free_ += duration(instruction);
    ends_[index(s)] = first_free_;
  }

  const Plan& plan_;
  std::vector<std::vector<Range>> ranges_;  // by instruction
  SideStreams result_;
  std::vector<double> ends_;  // by instruction, when it is over
  double first_free_ = 0;
  double second_free_ = 0;
  int forked_ = -1;  // the last instruction of the first stream that the second has waited for
  int joined_ = -1;  // up to here the first stream has waited for the second
};

}  // namespace

SideStreams find_side_streams(const Plan& plan, const PlanMemory& memory) {
  double all = 0;
  double launches = 0;
  for (const Instruction& instruction : plan.instructions) {
    all += duration(instruction);
    launches += kLaunch;
  }
  return launches * 2 > all ? Dividing(plan, memory).run() : SideStreams();
}

}  // namespace lockstep
