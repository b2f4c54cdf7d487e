#include "lockstep/runtime/offload_check.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/exec/executor.h"
#include "lockstep/graph/ops/matmul.h"
#include "lockstep/graph/ops/reduce.h"
#include "lockstep/passes/pipeline.h"
#include "lockstep/passes/precision.h"

namespace lockstep {
namespace {

constexpr std::int64_t kSide = 2048;                       // of the matrices
constexpr std::int64_t kElements = std::int64_t{1} << 24;  // of what is read once
constexpr std::size_t kCopied = std::size_t{32} << 20;     // bytes each way

// Several times; the fastest counts, because others may be using the bus.
double bus_rate(Device& device) {
  constexpr int kCopies = 5;
  const std::shared_ptr<Buffer> host_from = device.allocate_host(kCopied);
  const std::shared_ptr<Buffer> host_to = device.allocate_host(kCopied);
  const std::shared_ptr<Buffer> here = device.allocate(2 * kCopied);
  const std::unique_ptr<Stream> in = device.make_stream();
  const std::unique_ptr<Stream> out = device.make_stream();
  const std::unique_ptr<Event> begin = device.make_event(true);
  const std::unique_ptr<Event> end = device.make_event(true);
  double fastest_ms = 0;
  for (int copy = 0; copy < kCopies; ++copy) {
    in->synchronize();
    out->synchronize();
    begin->record(*in);
    out->wait_for(*begin);
    in->copy(here->data(), host_from->data(), kCopied);
    out->copy(host_to->data(), here->data() + kCopied, kCopied);
    in->wait_for(*out);
    end->record(*in);
    end->wait();
    const double ms = end->ms_since(*begin);
    if (ms > 0 && (fastest_ms == 0 || ms < fastest_ms)) fastest_ms = ms;
  }
  return fastest_ms > 0 ? static_cast<double>(kCopied) / (fastest_ms * 1e-3) : 0;
}

}  // namespace

OffloadRates measure_offload(Device& device, const KernelLibrary& kernels,
                             std::optional<DType> precision) {
  device.make_current();
  OffloadRates rates{.bus_bytes_per_s = bus_rate(device)};
  Graph graph;
  const Value matrix = graph.input("matrix", {DType::F32, Shape{kSide, kSide}});
  const Value much = graph.input("much", {DType::F32, Shape{kElements}});
  graph.output("product", reduce_max(matmul(matrix, matrix)));
  graph.output("largest", reduce_max(much));
  if (precision) MixedPrecision(*precision, {.round_inputs = true}).run(graph);
  optimize(graph, kernels);
  State state(device, 0);
  Executor executor(make_plan(std::move(graph), kernels), kernels, state);
  executor.run(Inputs::Filled);
  const std::vector<double> ms = executor.profile();
  const Plan& plan = executor.plan();
  for (std::size_t i = 0; i < ms.size(); ++i) {
    const Instruction& instruction = plan.instructions[i];
    if (ms[i] <= 0) continue;
    const bool product = plan.graph.node(instruction.node).op == Op::MatMul;
    double& rate = product ? rates.flops : rates.memory_bytes_per_s;
    const Cost& cost = instruction.cost;
    rate = std::max(rate, (product ? cost.flops : cost.bytes) / (ms[i] * 1e-3));
  }
  return rates;
}

double compute_seconds(const Plan& plan, const OffloadRates& rates) {
  double seconds = 0;
  for (const Instruction& instruction : plan.instructions) {
    if (instruction.stream != kComputeStream) continue;
    const double arithmetic = rates.flops > 0 ? instruction.cost.flops / rates.flops : 0;
    const double memory =
        rates.memory_bytes_per_s > 0 ? instruction.cost.bytes / rates.memory_bytes_per_s : 0;
    seconds += std::max(arithmetic, memory);
  }
  return seconds;
}

void expect_offload_keeps_up(const Plan& plan, const OffloadRates& rates,
                             const std::string& device) {
  if (rates.bus_bytes_per_s <= 0) return;  // a device without a clock
  const double bytes = static_cast<double>(plan.host_bytes);
  const double copying = bytes / rates.bus_bytes_per_s;
  const double computing = compute_seconds(plan, rates);
  require(copying <= computing,
          "[compile] offload = optimizer would make the bus the bottleneck: {:.0f} MiB of state go "
          "to {} and back in every step, which takes {:.1f} ms at the {:.1f} GB/s measured each "
          "way, and the step computes for about {:.1f} ms: use a larger batch, accumulate more "
          "micro-batches, or keep the state on the device (offload = none)",
          bytes / (1 << 20), device, copying * 1e3, rates.bus_bytes_per_s * 1e-9, computing * 1e3);
}

}  // namespace lockstep
