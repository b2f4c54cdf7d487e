#include "lockstep/explain/scaling_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/explain/advise.h"
#include "lockstep/explain/predict.h"

namespace lockstep {
namespace {

constexpr int kFewestReplicas = 8;  // the curve goes at least so far

std::string samples_text(double samples) {
  return std::isfinite(samples) ? fmt::format("{:.0f}", samples) : std::string("any number");
}

}  // namespace

ScalingCurve scaling_curve(const RunProfile& profile, const MeasuredStep& alone) {
  ScalingCurve curve;
  if (profile.steps == 0) return curve;
  Scenario scenario = scenario_of(profile, alone);
  const bool gpu = alone.device == "cuda";
  if (scenario.between.bytes_per_s <= 0 || profile.replicas == 1 || !is_over_a_network(profile)) {
    scenario.between = parse_link(gpu ? "100Gbit" : "10Gbit");
    curve.assumed = scenario.between.name;
  }
  if (scenario.within.bytes_per_s <= 0) scenario.within = parse_link("pcie4");
  std::vector<int> counts;
  for (int n = 1; n <= std::max(kFewestReplicas, 2 * profile.replicas); n *= 2) counts.push_back(n);
  if (std::ranges::find(counts, profile.replicas) == counts.end()) {
    counts.push_back(profile.replicas);
    std::ranges::sort(counts);
  }
  const double piece = scenario.samples;
  double one_s = 0;
  for (const int replicas : counts) {
    scenario.replicas = replicas;
    const SimulatedStep step = predict(alone, scenario);
    if (replicas == 1) one_s = step.step_s;
    ScalingPoint point{.replicas = replicas,
                       .batch = piece * replicas,
                       .step_s = step.step_s,
                       .speed_up = step.step_s > 0 ? replicas * one_s / step.step_s : 0};
    if (replicas == profile.replicas && profile.step_s > 0) {
      point.measured = replicas * one_s / profile.step_s;
    }
    curve.points.push_back(point);
  }
  return curve;
}

std::optional<LossOutlook> loss_outlook(const Learning& learning, double batch,
                                        std::span<const ScalePoint> points) {
  if (!learning.noise || points.empty() || !(batch > 0)) return std::nullopt;
  const RateRule rule = rate_rule_of(learning.optimizer);
  LossOutlook outlook{.noise = *learning.noise,
                      .points = time_to_loss(*learning.noise, points, rule),
                      .rates = {},
                      .largest = {}};
  for (const TimeToLoss& point : outlook.points) {
    outlook.rates.push_back(learning.learning_rate *
                            rate_factor(outlook.noise.value, batch, point.at.batch, rule));
  }
  outlook.largest = largest_that_pays(outlook.points);
  return outlook;
}

std::optional<LossOutlook> loss_outlook(const RunProfile& profile, const ScalingCurve& curve) {
  std::vector<ScalePoint> points;
  for (const ScalingPoint& point : curve.points) {
    if (!(point.step_s > 0) || !(point.batch > 0)) return std::nullopt;
    points.push_back(
        {.devices = point.replicas, .batch = point.batch, .step_seconds = point.step_s});
  }
  return loss_outlook(profile.learning, static_cast<double>(profile.global_batch), points);
}

std::string sentence_of(const LossOutlook& outlook) {
  if (!outlook.largest) return "";
  const ScalePoint& largest = *outlook.largest;
  const TimeToLoss& last = outlook.points.back();
  if (largest.devices == outlook.points.front().at.devices) {
    return fmt::format(
        "more than {} device{} would reach a loss sooner only at more than twice the device time: "
        "batches larger than {:.0f} hardly save steps here",
        largest.devices, largest.devices == 1 ? "" : "s", largest.batch);
  }
  const auto at = std::ranges::find_if(
      outlook.points, [&](const TimeToLoss& point) { return point.at.devices == largest.devices; });
  const double rate = outlook.rates[static_cast<std::size_t>(at - outlook.points.begin())];
  std::string text =
      fmt::format("a loss is reached {:.2f}x as soon on {} device{} as on {} (batch {:.0f}",
                  at->sooner, largest.devices, largest.devices == 1 ? "" : "s",
                  outlook.points.front().at.devices, largest.batch);
  if (rate > 0) text += fmt::format(", learning rate {:.3g}", rate);
  text += largest.devices == last.at.devices
              ? "), and more may pay"
              : "); more than that take more than twice the device time";
  return text;
}

std::string text_of(const LossOutlook& outlook) {
  std::string text = fmt::format(
      "how much sooner a loss is reached (gradient noise scale {} samples, likely {} to {})\n",
      samples_text(outlook.noise.value), samples_text(outlook.noise.low),
      samples_text(outlook.noise.high));
  const bool rates = !outlook.rates.empty() && outlook.rates.front() > 0;
  text += fmt::format("  {:>8} {:>9} {:>11} {:>8} {:>8}  {:<14}{}\n", "devices", "batch",
                      "samples/s", "steps", "sooner", "likely", rates ? "learning rate" : "");
  for (std::size_t i = 0; i < outlook.points.size(); ++i) {
    const TimeToLoss& point = outlook.points[i];
    text += fmt::format("  {:>8} {:>9.0f} {:>10.2f}x {:>7.2f}x {:>7.2f}x  {:<14}{}\n",
                        point.at.devices, point.at.batch, point.faster, point.steps, point.sooner,
                        fmt::format("{:.2f} to {:.2f}", point.sooner_low, point.sooner_high),
                        rates ? fmt::format("{:.3g}", outlook.rates[i]) : "");
  }
  const std::string sentence = sentence_of(outlook);
  return sentence.empty() ? text : text + "  " + sentence + "\n";
}

}  // namespace lockstep
