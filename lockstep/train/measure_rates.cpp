#include "lockstep/train/measure_rates.h"

#include <algorithm>

#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/matmul.h"
#include "lockstep/graph/ops/reduce.h"
#include "lockstep/passes/precision.h"
#include "lockstep/train/solo_step.h"

namespace lockstep {
namespace {

// A product that is large enough for the device, one pass over much memory, and one over little.
Graph probe(DeviceKind kind) {
  const bool gpu = kind == DeviceKind::Cuda;
  const std::int64_t side = gpu ? 4096 : 384;
  const std::int64_t elements = std::int64_t{1} << (gpu ? 27 : 22);
  Graph graph;
  const Value matrix = graph.input("matrix", {DType::F32, Shape{side, side}});
  const Value other = graph.input("other", {DType::F32, Shape{side, side}});
  graph.output("product", reduce_max(matmul(matrix, other)));
  const Value much = graph.input("much", {DType::F32, Shape{elements}});
  graph.output("much_max", reduce_max(much));
  const Value little = graph.input("little", {DType::F32, Shape{16}});
  graph.output("little_max", reduce_max(little));
  return graph;
}

}  // namespace

DeviceRates measure_rates(World& world, std::optional<DType> precision) {
  constexpr int kRuns = 7;
  DeviceRates rates;
  // Pinned to the first rank's cores, as its steps are.
  world.run([&](int local) {
    if (local != 0) return;
    Device& device = world.device(local);
    device.make_current();
    const KernelLibrary& kernels = world.kernels(local);
    Graph graph = probe(device.kind());
    if (precision) MixedPrecision(*precision, {.round_inputs = true}).run(graph);
    optimize(graph, kernels);
    SoloStep step(world, local, make_plan(std::move(graph), kernels), 0);
    for (int run = 0; run < kRuns; ++run) step.run();
    step.wait();
    const std::vector<double> seconds = step.instruction_seconds();
    const Plan& plan = step.plan();
    double least = 0;
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      const Cost& cost = plan.instructions[i].cost;
      if (seconds[i] <= 0) continue;
      if (plan.graph.node(plan.instructions[i].node).op == Op::MatMul) {
        rates.flops = std::max(rates.flops, cost.flops / seconds[i]);
      } else {
        rates.bytes_per_s = std::max(rates.bytes_per_s, cost.bytes / seconds[i]);
      }
      least = least > 0 ? std::min(least, seconds[i]) : seconds[i];
    }
    rates.launch_s = least;
  });
  return rates;
}

}  // namespace lockstep
