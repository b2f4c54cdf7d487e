#include "lockstep/exec/side_steps.h"

#include <algorithm>

#include "lockstep/graph/ops/pointwise.h"
#include "lockstep/graph/ops/state.h"

namespace lockstep {
namespace {

// Microseconds that a step takes, roughly: a launch, its memory and its arithmetic on a large GPU.
constexpr double kLaunch = 2.0;
constexpr double kBytes = 4e6;  // a microsecond
constexpr double kFlops = 1e8;  // a microsecond
constexpr double kShort = 4.0;  // what takes longer fills a GPU by itself
constexpr double kSlack = 1.0;  // by which a step may start later than it would on the first stream

double duration(const PlanStep& step) {
  return kLaunch + step.cost.bytes / kBytes + step.cost.flops / kFlops;
}

struct Range {
  const std::byte* begin;
  const std::byte* end;
  bool written;

  bool conflicts(const Range& other) const {
    return (written || other.written) && begin < other.end && other.begin < end;
  }
};

bool may_run_beside(const PlanStep& step, const Node& node) {
  if (step.stream != kComputeStream) return false;
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
    for (const PlanStep& step : plan.steps) ranges_.push_back(ranges_of(step, memory));
    const std::size_t count = plan.steps.size();
    result_ = {.beside = std::vector<bool>(count, false),
               .forks = std::vector<bool>(count, false),
               .joins = std::vector<bool>(count, false)};
    ends_.assign(count, 0.0);
  }

  SideSteps run() {
    for (int s = 0; s < count(); ++s) place(s);
    return std::move(result_);
  }

 private:
  int count() const { return static_cast<int>(plan_.steps.size()); }
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }

  // What a step reads and writes: its outputs, and the variables that it changes.
  std::vector<Range> ranges_of(const PlanStep& step, const PlanMemory& memory) const {
    const Node& node = plan_.graph.node(step.node);
    const std::vector<ValueId> changed = changed_variables(node);
    std::vector<Range> ranges;
    const auto add = [&](const std::byte* begin, std::size_t bytes, bool written) {
      if (bytes > 0) ranges.push_back({begin, begin + bytes, written});
    };
    for (ValueId id : node.inputs) {
      add(memory.address(id), plan_.graph.bytes(id), std::ranges::count(changed, id) > 0);
    }
    for (ValueId id : node.outputs) add(memory.address(id), plan_.graph.bytes(id), true);
    add(memory.workspace(step), step.workspace_bytes, true);
    return ranges;
  }

  bool depends(int later, int earlier) const {
    return std::ranges::any_of(ranges_[index(later)], [&](const Range& a) {
      return std::ranges::any_of(ranges_[index(earlier)],
                                 [&](const Range& b) { return a.conflicts(b); });
    });
  }

  // The last step of a stream before s that it depends on, or -1; none at or before `known`.
  int last_dependency(int s, bool beside, int known) const {
    for (int earlier = s - 1; earlier > known; --earlier) {
      if (result_.beside[index(earlier)] == beside && depends(s, earlier)) return earlier;
    }
    return -1;
  }

  // To the second stream, where a step can start there while the first has other things to do.
  void place(int s) {
    const PlanStep& step = plan_.steps[index(s)];
    const Node& node = plan_.graph.node(step.node);
    const int on_first = last_dependency(s, false, -1);
    const int on_second = last_dependency(s, true, joined_);
    const double known = on_first < 0 ? 0.0 : ends_[index(on_first)];
    const bool small = duration(step) <= kShort && may_run_beside(step, node);
    const double start = std::max(known, second_free_);
    const bool waits = on_second >= 0;
    if (small && known < first_free_ && start < first_free_ + kSlack) {
      result_.beside[index(s)] = true;
      result_.any = true;
      if (on_first > forked_) {
        result_.forks[index(on_first)] = true;
        forked_ = on_first;
      }
      second_free_ = start + duration(step);
      ends_[index(s)] = second_free_;
      return;
    }
    if (waits) {
      result_.joins[index(s)] = true;
      joined_ = s;
      first_free_ = std::max(first_free_, second_free_);
    }
    first_free_ += duration(step);
    ends_[index(s)] = first_free_;
  }

  const Plan& plan_;
  std::vector<std::vector<Range>> ranges_;  // by step
  SideSteps result_;
  std::vector<double> ends_;  // by step, when it is over
  double first_free_ = 0;
  double second_free_ = 0;
  int forked_ = -1;  // the last step of the first stream that the second has waited for
  int joined_ = -1;  // up to here the first stream has waited for the second
};

}  // namespace

SideSteps find_side_steps(const Plan& plan, const PlanMemory& memory) {
  double all = 0;
  double launches = 0;
  for (const PlanStep& step : plan.steps) {
    all += duration(step);
    launches += kLaunch;
  }
  return launches * 2 > all ? Dividing(plan, memory).run() : SideSteps();
}

}  // namespace lockstep
