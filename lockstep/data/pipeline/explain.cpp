#include "lockstep/data/pipeline/explain.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep {
namespace {

constexpr double kConsumerWaits = 0.05;  // of the time; below that, the pipeline is fast enough

StageReport report_of(Stage& stage, int depth) {
  StageReport report;
  report.name = stage.name();
  report.depth = depth;
  report.items = stage.items;
  report.bytes = stage.bytes;
  report.busy_s = static_cast<double>(stage.busy_ns) * 1e-9;
  report.wait_s = static_cast<double>(stage.wait_ns) * 1e-9;
  report.threads = stage.threads;
  report.capacity = stage.capacity;
  const std::int64_t fills = stage.fills;
  if (fills > 0) {
    report.fill = static_cast<double>(stage.fill_sum) / static_cast<double>(fills);
  }
  report.decisions = stage.decisions();
  report.notes = stage.notes();
  return report;
}

void collect(const DatasetNode& node, Runtime& runtime, int depth, PipelineReport& report) {
  report.stages.push_back(report_of(runtime.stage(node), depth));
  for (const NodePtr& input : node.inputs()) collect(*input, runtime, depth + 1, report);
}

std::string figure(double value) {
  const auto scaled = [](double v) {
    return v < 10    ? fmt::format("{:.2f}", v)
           : v < 100 ? fmt::format("{:.1f}", v)
                     : fmt::format("{:.0f}", v);
  };
  if (value >= 1e9) return scaled(value * 1e-9) + " G";
  if (value >= 1e6) return scaled(value * 1e-6) + " M";
  if (value >= 1e3) return scaled(value * 1e-3) + " k";
  return scaled(value) + " ";
}

bool has_stage(const PipelineReport& report, std::string_view name) {
  return std::ranges::any_of(report.stages, [&](const StageReport& stage) {
    return stage.name == name || stage.name.starts_with(std::string(name) + " ");
  });
}

}  // namespace

PipelineReport explain(const DatasetNode& node, Runtime& runtime) {
  PipelineReport report;
  collect(node, runtime, 0, report);
  report.consumer_wait_s = static_cast<double>(runtime.consumer_wait.ended()) * 1e-9;
  report.cores = runtime.cores();
  report.memory_budget = runtime.memory_budget();
  report.memory_reserved = runtime.reserved();
  report.skipped = runtime.skipped_count();
  for (const Skipped& skipped : runtime.skipped_list()) {
    report.skipped_first.push_back(skipped.what);
  }
  return report;
}

// The bottleneck is the stage with the most busy time per thread. It matters only if the consumer
// had to wait.
void judge(PipelineReport& report) {
  if (report.elements == 0 || report.stages.empty()) {
    report.limiting = "nothing yet";
    report.advice = "No element has been requested yet.";
    return;
  }
  const double waiting = report.consumer_wait_s / std::max(report.seconds, 1e-9);
  if (waiting < kConsumerWaits) {
    report.limiting = "the consumer";
    report.advice = fmt::format(
        "The pipeline is fast enough: the consumer waited {:.1f}% of the time.", 100 * waiting);
    return;
  }
  const auto load = [](const StageReport& stage) { return stage.busy_s / stage.threads; };
  const StageReport& slowest = *std::ranges::max_element(report.stages, {}, load);
  double all_busy = 0;
  for (const StageReport& stage : report.stages) all_busy += stage.busy_s;
  const double threads_busy = all_busy / std::max(report.seconds, 1e-9);
  const double share = slowest.busy_s / std::max(all_busy, 1e-9);
  report.limiting = slowest.name;
  report.advice =
      fmt::format("The consumer waited {:.0f}% of the time; {:.0f}% of the work was in {}. ",
                  100 * waiting, 100 * share, slowest.name);
  const bool maps = slowest.name.starts_with("map");
  if (threads_busy > 0.85 * report.cores) {
    report.advice += fmt::format(
        "All {} cores are busy: make {} cheaper, keep its results with cache() or snapshot(), or "
        "give the pipeline more cores.",
        report.cores, slowest.name);
  } else if (maps && slowest.threads == 1) {
    report.advice += "Let it run on several threads: map(…, {.parallel = AUTOTUNE}).";
  } else if (!has_stage(report, "prefetch")) {
    report.advice +=
        "Elements are produced while the consumer waits: end the data set with prefetch(AUTOTUNE).";
  } else if (maps) {
    report.advice += fmt::format("It may use {} of {} cores: allow more with .parallel.",
                                 slowest.threads, report.cores);
  } else {
    report.advice +=
        "It runs on one thread: read several files at once with interleave(…, {.parallel = "
        "AUTOTUNE}), or keep its results with cache() or snapshot().";
  }
}

std::string PipelineReport::text() const {
  std::string text = fmt::format("{:<34} {:>9} {:>9} {:>8} {:>8} {:>8} {:>12}\n", "stage", "items",
                                 "bytes", "busy s", "wait s", "threads", "queue");
  for (const StageReport& stage : stages) {
    const std::string queue =
        stage.capacity > 0 ? fmt::format("{:.1f} of {}", stage.fill, stage.capacity) : "";
    text += fmt::format("{:<34} {:>9} {:>9} {:>8.3f} {:>8.3f} {:>8} {:>12}\n",
                        std::string(static_cast<std::size_t>(2 * stage.depth), ' ') + stage.name,
                        figure(static_cast<double>(stage.items)),
                        figure(static_cast<double>(stage.bytes)), stage.busy_s, stage.wait_s,
                        stage.threads, queue);
  }
  text += fmt::format("{} elements in {:.2f} s ({}/s) on {} cores; the consumer waited {:.2f} s.\n",
                      elements, seconds,
                      figure(static_cast<double>(elements) / std::max(seconds, 1e-9)), cores,
                      consumer_wait_s);
  for (const StageReport& stage : stages) {
    for (const std::string& decision : stage.decisions) {
      text += fmt::format("{} chose {}\n", stage.name, decision);
    }
    for (const std::string& note : stage.notes) text += fmt::format("{}: {}\n", stage.name, note);
  }
  if (skipped > 0) {
    text += fmt::format("Skipped {} elements:\n", skipped);
    for (const std::string& what : skipped_first) text += "  " + what + "\n";
    if (skipped > std::ssize(skipped_first)) text += "  …\n";
  }
  text += fmt::format("Bottleneck: {}. {}\n", limiting, advice);
  return text;
}

}  // namespace lockstep
