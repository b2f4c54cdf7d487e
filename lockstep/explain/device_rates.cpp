#include "lockstep/explain/device_rates.h"

#include <algorithm>

namespace lockstep {

MeasuredStep estimated_step(const Plan& plan, const DeviceRates& rates) {
  MeasuredStep step;
  step.instructions = instructions_of(plan);
  for (MeasuredInstruction& each : step.instructions) {
    if (!each.collective.empty()) continue;
    const double arithmetic = rates.flops > 0 ? each.flops / rates.flops : 0;
    const double memory = rates.bytes_per_s > 0 ? each.bytes / rates.bytes_per_s : 0;
    each.seconds.fixed = rates.launch_s + std::max(arithmetic, memory);
  }
  step.batch = 1;  // times are of the whole plan, whatever its samples
  step.memory.fixed = static_cast<double>(plan.peak_bytes());
  return step;
}

}  // namespace lockstep
