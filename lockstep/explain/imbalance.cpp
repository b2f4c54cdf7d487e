#include "lockstep/explain/imbalance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace lockstep {
namespace {

constexpr std::size_t kMostStretches = 16;
constexpr std::size_t kWindowsOfStretch = 8;  // at least
constexpr double kErrors = 3;                 // standard errors: what chance does not explain
constexpr double kLeastShare = 0.02;          // of the time that the others were busy
constexpr double kWorthNaming = 0.05;

using Field = std::vector<double> StepWindow::*;

std::vector<const StepWindow*> usable_windows(const RunProfile& profile) {
  std::vector<const StepWindow*> windows;
  for (const StepWindow& window : profile.windows) {
    if (std::ssize(window.compute_s) == profile.replicas && window.steps > 0) {
      windows.push_back(&window);
    }
  }
  return windows;
}

double steps_of(std::span<const StepWindow* const> windows) {
  double steps = 0;
  for (const StepWindow* window : windows) steps += static_cast<double>(window->steps);
  return steps;
}

// The mean per step of one replica.
double mean_of_replica(std::span<const StepWindow* const> windows, Field field, std::size_t r) {
  double sum = 0;
  for (const StepWindow* window : windows) {
    sum += static_cast<double>(window->steps) * (window->*field)[r];
  }
  return sum / steps_of(windows);
}

// How much longer a replica was busy in a window than the others, on average.
double later_than_others(const StepWindow& window, std::size_t replica) {
  const std::size_t count = window.compute_s.size();
  double others = 0;
  for (std::size_t r = 0; r < count; ++r) {
    if (r != replica) others += window.compute_s[r] + window.input_s[r];
  }
  return window.compute_s[replica] + window.input_s[replica] -
         others / static_cast<double>(count - 1);
}

// The mean over the windows, and how far chance may have moved it.
struct Estimate {
  double mean = 0;
  double error = 0;
};
Estimate lateness(std::span<const StepWindow* const> windows, std::size_t replica) {
  const double steps = steps_of(windows);
  double mean = 0;
  for (const StepWindow* window : windows) {
    mean += static_cast<double>(window->steps) / steps * later_than_others(*window, replica);
  }
  // From the differences between a window and the next, so that a replica that becomes slow within
  // the stretch does not pass for one that varies; the largest is left out for the same reason.
  double squares = 0;
  double most = 0;
  for (std::size_t w = 1; w < windows.size(); ++w) {
    const double off =
        later_than_others(*windows[w], replica) - later_than_others(*windows[w - 1], replica);
    squares += off * off;
    most = std::max(most, off * off);
  }
  const auto count = static_cast<double>(windows.size());
  const double variance = count > 2 ? (squares - most) / (count - 2) / 2 : 0;
  return {.mean = mean, .error = std::sqrt(variance / count)};
}

// How much longer than its mean the last replica of a step is busy because steps vary; estimated
// from differences, as above.
double variation_of(std::span<const StepWindow* const> windows, std::size_t replicas) {
  double sum = 0;
  double most = 0;
  for (std::size_t w = 1; w < windows.size(); ++w) {
    double last = 0;
    for (std::size_t r = 0; r < replicas; ++r) {
      const double more = windows[w]->compute_s[r] + windows[w]->input_s[r] -
                          windows[w - 1]->compute_s[r] - windows[w - 1]->input_s[r];
      last = r == 0 ? more : std::max(last, more);
    }
    sum += last;
    most = w == 1 ? last : std::max(most, last);
  }
  const double count = static_cast<double>(windows.size()) - 2;
  if (count < 2) return 0;
  // The mean of a window of n steps varies by 1 / sqrt(n) of what a step does.
  const double steps = steps_of(windows) / static_cast<double>(windows.size());
  return std::max(0.0, (sum - most) / count * std::sqrt(steps / 2));
}

// The mean of what the last replica was busy for, in windows.
double last_busy(std::span<const StepWindow* const> windows, std::size_t replicas) {
  double sum = 0;
  for (const StepWindow* window : windows) {
    double last = 0;
    for (std::size_t r = 0; r < replicas; ++r) {
      last = std::max(last, window->compute_s[r] + window->input_s[r]);
    }
    sum += static_cast<double>(window->steps) * last;
  }
  return sum / steps_of(windows);
}

RunStretch stretch_of(std::span<const StepWindow* const> windows, std::size_t replicas) {
  RunStretch stretch{.first = windows.front()->first, .steps = steps_of(windows)};
  std::vector<double> compute, input;
  for (std::size_t r = 0; r < replicas; ++r) {
    compute.push_back(mean_of_replica(windows, &StepWindow::compute_s, r));
    input.push_back(mean_of_replica(windows, &StepWindow::input_s, r));
    stretch.compute_s += compute[r] / static_cast<double>(replicas);
    stretch.input_s += input[r] / static_cast<double>(replicas);
  }
  const double busy = stretch.compute_s + stretch.input_s;
  // Few windows say little about chance.
  const double share = windows.size() < 4 ? kWorthNaming : kLeastShare;
  for (std::size_t r = 0; replicas > 1 && r < replicas; ++r) {
    const Estimate late = lateness(windows, r);
    if (late.mean > share * busy && late.mean > kErrors * late.error) stretch.slow.push_back(r);
  }
  const auto usual = static_cast<double>(replicas - stretch.slow.size());
  for (std::size_t r = 0; r < replicas; ++r) {
    if (std::ranges::count(stretch.slow, r) > 0) continue;
    stretch.usual_compute_s += compute[r] / usual;
    stretch.usual_input_s += input[r] / usual;
  }
  // Without the slow ones the others would still wait for one another.
  const double variation = variation_of(windows, replicas);
  if (!stretch.slow.empty()) {
    const double of_windows =
        variation / std::sqrt(stretch.steps / static_cast<double>(windows.size()));
    stretch.late_s = std::max(0.0, last_busy(windows, replicas) - stretch.usual_compute_s -
                                       stretch.usual_input_s - of_windows);
  }
  // The last one to come waits for nobody.
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t r = 0; r < replicas; ++r) {
    least = std::min(least, mean_of_replica(windows, &StepWindow::wait_s, r));
  }
  stretch.idle_s = stretch.slow.empty() ? std::max(0.0, least - variation) : least;
  return stretch;
}

// The window from which on a replica is late: where the windows are best described by one mean
// before and another after. The first window, unless it was clearly less late before.
std::size_t late_since(const std::vector<const StepWindow*>& windows, std::size_t replica) {
  constexpr std::size_t kLeast = 3;  // windows before
  std::vector<double> sums = {0};
  std::vector<double> steps = {0};
  for (const StepWindow* window : windows) {
    const auto count = static_cast<double>(window->steps);
    steps.push_back(steps.back() + count);
    sums.push_back(sums.back() + count * later_than_others(*window, replica));
  }
  std::size_t found = 0;
  double best = 0;
  for (std::size_t k = kLeast; k < windows.size(); ++k) {
    const double before = sums[k] / steps[k];
    const double after = (sums.back() - sums[k]) / (steps.back() - steps[k]);
    // What the two means explain of the variation.
    const double explained =
        steps[k] * (steps.back() - steps[k]) / steps.back() * (after - before) * (after - before);
    if (after <= 0 || before > after / 2 || explained <= best) continue;
    best = explained;
    found = k;
  }
  return found;
}

SlowReplica::Why why_late(std::span<const StepWindow* const> windows, std::size_t replica,
                          std::size_t replicas, double late_s) {
  const auto others = [&](Field field) {
    double sum = 0;
    for (std::size_t r = 0; r < replicas; ++r) {
      if (r != replica) sum += mean_of_replica(windows, field, r);
    }
    return sum / static_cast<double>(replicas - 1);
  };
  const auto mine = [&](Field field) { return mean_of_replica(windows, field, replica); };
  if (mine(&StepWindow::input_s) - others(&StepWindow::input_s) > late_s / 2) {
    return SlowReplica::Why::Input;
  }
  const double work = others(&StepWindow::samples) > 0
                          ? mine(&StepWindow::samples) / others(&StepWindow::samples)
                          : 1;
  const double longer = others(&StepWindow::compute_s) > 0
                            ? mine(&StepWindow::compute_s) / others(&StepWindow::compute_s)
                            : 1;
  // More samples explain most of it.
  const bool by_work = work > 1 + kWorthNaming && (work - 1) > (longer - 1) / 2;
  return by_work ? SlowReplica::Why::Work : SlowReplica::Why::Device;
}

}  // namespace

std::vector<RunStretch> stretches_of(const RunProfile& profile) {
  const std::vector<const StepWindow*> windows = usable_windows(profile);
  if (windows.empty()) return {};
  const std::size_t count =
      std::clamp<std::size_t>(windows.size() / kWindowsOfStretch, 1, kMostStretches);
  std::vector<RunStretch> stretches;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t begin = windows.size() * i / count;
    const std::size_t end = windows.size() * (i + 1) / count;
    stretches.push_back(stretch_of(std::span(windows).subspan(begin, end - begin),
                                   static_cast<std::size_t>(profile.replicas)));
  }
  return stretches;
}

std::optional<SlowReplica> slow_replica(const RunProfile& profile) {
  if (profile.replicas < 2) return std::nullopt;
  const auto replicas = static_cast<std::size_t>(profile.replicas);
  std::vector<double> lost(replicas, 0);
  double all = 0;
  for (const RunStretch& stretch : stretches_of(profile)) {
    all += stretch.steps * (stretch.usual_compute_s + stretch.usual_input_s);
    for (const std::size_t r : stretch.slow) {
      lost[r] += stretch.steps * stretch.late_s / static_cast<double>(stretch.slow.size());
    }
  }
  const auto slowest = static_cast<std::size_t>(std::ranges::max_element(lost) - lost.begin());
  if (all <= 0 || lost[slowest] < kWorthNaming * all) return std::nullopt;
  const std::vector<const StepWindow*> windows = usable_windows(profile);
  const std::size_t since = late_since(windows, slowest);
  const std::span<const StepWindow* const> late = std::span(windows).subspan(since);
  const auto busy = [&](std::size_t r) {
    return mean_of_replica(late, &StepWindow::compute_s, r) +
           mean_of_replica(late, &StepWindow::input_s, r);
  };
  const double late_s = lateness(late, slowest).mean;
  const double others = busy(slowest) - late_s;
  return SlowReplica{.replica = static_cast<int>(slowest),
                     .since = since == 0 ? 0 : windows[since]->first,
                     .times = others > 0 ? busy(slowest) / others : 1,
                     .seconds = lost[slowest],
                     .why = why_late(late, slowest, replicas, late_s)};
}

}  // namespace lockstep
