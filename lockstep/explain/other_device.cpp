#include "lockstep/explain/other_device.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep {
namespace {

struct Rates {
  double flops = 0;
  double bytes = 0;

  // The least time in which a device with these rates can do an instruction's work.
  double least_seconds(const MeasuredInstruction& work) const {
    return std::max(flops > 0 ? work.flops / flops : 0, bytes > 0 ? work.bytes / bytes : 0);
  }
};

// Products in float32 use TF32 where there is any, as Lockstep does unless told otherwise.
Rates published(const DevicePeak& device, const std::string& precision) {
  const double full = device.flops_tf32 > 0 ? device.flops_tf32 : device.flops_f32;
  return {.flops = precision == "float32" ? full : device.flops_16, .bytes = device.bytes_per_s};
}

// The best that an instruction reached; short ones, whose times say little, do not count.
Rates best_of(const MeasuredStep& step) {
  constexpr double kWorthCounting = 0.002;  // of the step
  const auto samples = static_cast<double>(step.batch);
  const double whole = compute_seconds(step, samples);
  Rates best;
  for (const MeasuredInstruction& each : step.instructions) {
    const double seconds = each.seconds.at(samples);
    if (!each.collective.empty() || seconds <= kWorthCounting * whole) continue;
    best.flops = std::max(best.flops, each.flops / seconds);
    best.bytes = std::max(best.bytes, each.bytes / seconds);
  }
  return best;
}

}  // namespace

OtherDevice on_device(const MeasuredStep& step, const DevicePeak& device) {
  const DevicePeak* const here = step.device == "cuda" ? find_hardware(step.hardware) : nullptr;
  const Rates from = here != nullptr ? published(*here, step.precision) : best_of(step);
  const Rates to = published(device, step.precision);
  OtherDevice result{.step = step, .how_sure = ""};
  for (MeasuredInstruction& each : result.step.instructions) {
    const double there = to.least_seconds(each);
    const double here_s = from.least_seconds(each);
    if (!each.collective.empty() || here_s <= 0) continue;
    const double ratio = there / here_s;
    each.seconds.fixed *= ratio;
    each.seconds.per_sample *= ratio;
  }
  result.step.device = "cuda";
  result.step.hardware = device.title;
  result.step.side_by_side.clear();
  result.step.host_collectives.clear();
  result.step.meet_seconds = 0;
  result.step.host_seconds = {};
  result.step.wire_s_per_byte = 0;
  if (here == nullptr) result.step.jitter.clear();
  result.how_sure =
      here != nullptr
          ? fmt::format(
                "measured on {} and scaled by the published figures of both: within about "
                "a third",
                step.hardware)
          : fmt::format(
                "from the published figures of {}, at the efficiency of each instruction "
                "on {}: a bound, which may be off by a factor of two",
                device.title, step.hardware);
  return result;
}

}  // namespace lockstep
