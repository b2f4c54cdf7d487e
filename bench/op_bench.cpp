// Times the cases marked as timed in the case lists, gradients included: the reference kernels
// against the kernels that a CPU device runs.
//   op_bench [FAMILY or part of a case's name]
#include <fmt/core.h>

#include <algorithm>
#include <string>

#include "families.h"
#include "lockstep/passes/pipeline.h"
#include "lockstep/profile/recorder.h"

namespace lockstep {
namespace {

constexpr std::int64_t kTimeNs = 200'000'000;  // per case and library
constexpr int kMostRuns = 2000;

// The fastest of many runs, in microseconds, which other work on the machine disturbs least.
double fastest_us(CaseRun& run) {
  run.run();
  std::int64_t best = -1;
  const std::int64_t begin = now_ns();
  for (int i = 0; i < kMostRuns && (i < 3 || now_ns() - begin < kTimeNs); ++i) {
    const std::int64_t before = now_ns();
    run.run();
    const std::int64_t time = now_ns() - before;
    best = best < 0 ? time : std::min(best, time);
  }
  return static_cast<double>(best) * 1e-3;
}

Graph graph_for(const OpCase& op_case, const KernelLibrary& library) {
  Graph graph = build_graph(op_case, DType::F32).graph;
  optimize(graph, library);
  return graph;
}

void time_row(const char* family, const OpCase& op_case) {
  CaseRun reference(op_case, graph_for(op_case, reference_kernels()), reference_kernels());
  CaseRun cpu(op_case, graph_for(op_case, cpu_kernels()), cpu_kernels());
  const double slow = fastest_us(reference);
  const double fast = fastest_us(cpu);
  const double gflops = cpu.executor().plan().total_cost().flops * 1e-3 / fast;
  fmt::print("{:<14} {:<36} {:>13.1f} {:>13.1f} {:>8.1f} {:>9.1f}\n", family, op_case.name, slow,
             fast, slow / fast, gflops);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;
  const std::string wanted = argc > 1 ? argv[1] : "";
  host().make_current();
  fmt::print("{:<14} {:<36} {:>13} {:>13} {:>8} {:>9}\n", "family", "case", "reference µs",
             "cpu µs", "ratio", "GFLOP/s");
  for (const Family& family : kFamilies) {
    for (const OpCase& op_case : family.cases()) {
      if (!op_case.timed) continue;
      if (std::string(family.name) != wanted && op_case.name.find(wanted) == std::string::npos) {
        continue;
      }
      time_row(family.name, op_case);
    }
  }
}
