#include "lockstep/explain/explanation_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace lockstep {
namespace {

constexpr double kWorthNaming = 0.01;
constexpr std::size_t kMostNamed = 4;

// "imbalance 11% (cpu:0 is a slower device), host 3%": the largest ones; where the largest was.
std::string losses_text(const Explanation& explanation) {
  std::vector<LostTime> lost = explanation.lost;
  std::ranges::stable_sort(lost, std::greater<>(), &LostTime::fraction);
  std::string text;
  std::size_t named = 0;
  for (const LostTime& each : lost) {
    if (each.fraction < kWorthNaming || named == kMostNamed) break;
    text += fmt::format("{}{} {:.0f}%", named == 0 ? "" : ", ", name_of(each.cause),
                        100 * each.fraction);
    if (named == 0 && !each.where.empty()) text += fmt::format(" ({})", each.where);
    ++named;
  }
  return text;
}

std::string predicted_text(const Predicted& predicted) {
  std::string text =
      fmt::format("predicted {:.3g} ms a step (likely {:.3g} to {:.3g}), measured {:.3g} ms",
                  predicted.step_ms, predicted.low_ms, predicted.high_ms, predicted.measured_ms);
  if (predicted.measured_ms > 0) {
    text += fmt::format(": off by {:+.1f}%", 100 * (predicted.step_ms / predicted.measured_ms - 1));
  }
  return text + "\n";
}

}  // namespace

std::string text_of(const Explanation& explanation) {
  std::string text = fmt::format(
      "{} replica{}: {:.2f}x the speed of one device alone, of {:.2f}x possible ({:.3f} s in all, "
      "{:.3g} ms a step)\n",
      explanation.replicas, explanation.replicas == 1 ? "" : "s", explanation.speed_up,
      explanation.possible, explanation.seconds, explanation.step_ms);
  const double got = explanation.speed_up / explanation.replicas;
  text +=
      fmt::format("  {:<26} {:>9.3f} s {:>6.1f}%\n", "used", got * explanation.seconds, 100 * got);
  for (const LostTime& lost : explanation.lost) {
    text += fmt::format("  {:<26} {:>9.3f} s {:>6.1f}%{}{}\n", name_of(lost.cause), lost.seconds,
                        100 * lost.fraction, lost.where.empty() ? "" : "  ", lost.where);
  }
  text += fmt::format("  {:<26} {:>9.3f} s {:>6.1f}%\n", "together", explanation.seconds, 100.0);
  if (explanation.predicted) text += predicted_text(*explanation.predicted);
  for (const Advice& advice : explanation.advice) {
    text += fmt::format("- {}: {} ({:.0f}% sure)\n", advice.change, advice.gain, 100 * advice.sure);
    if (!advice.command.empty()) text += fmt::format("    {}\n", advice.command);
  }
  return text;
}

std::string paragraph_of(const Explanation& explanation) {
  const double got = explanation.speed_up / std::max(explanation.replicas, 1);
  std::string text =
      explanation.replicas == 1
          ? fmt::format("One device spent {:.0f}% of the time on training steps.", 100 * got)
          : fmt::format("{} devices were {:.2f}x as fast as one alone, of {:.2f}x possible.",
                        explanation.replicas, explanation.speed_up, explanation.possible);
  if (const std::string lost = losses_text(explanation); !lost.empty()) {
    text += fmt::format(" {} to {}.", explanation.replicas == 1 ? "The rest went" : "Time was lost",
                        lost);
  }
  if (explanation.predicted && explanation.predicted->measured_ms > 0) {
    text += fmt::format(" Predicted were {:.3g} ms a step, measured {:.3g} ms.",
                        explanation.predicted->step_ms, explanation.predicted->measured_ms);
  }
  if (!explanation.advice.empty()) {
    const Advice& first = explanation.advice.front();
    text += fmt::format("\n  What would help most: {}: {}.", first.change, first.gain);
    if (!first.command.empty()) text += fmt::format("\n    {}", first.command);
  }
  return text + "\n";
}

}  // namespace lockstep
