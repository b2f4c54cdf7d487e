#include "lockstep/cli/metrics_text.h"

#include <fmt/format.h>

#include <cmath>

namespace lockstep::cli {
namespace {

// "NaN", "+Inf" and "-Inf" are numbers of the format.
std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

// The value of a label: a backslash, a quote and a new line are escaped.
std::string label_text(const std::string& value) {
  std::string text;
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    text += c == '\n' ? "\\n" : std::string(1, c);
  }
  return text;
}

class MetricsWriter {
 public:
  // The head of a metric; its samples follow.
  void head(const char* name, const char* type, const char* help) {
    name_ = std::string("lockstep_") + name;
    text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name_, help, name_, type);
  }
  void sample(double value, const std::string& labels = "", const char* suffix = "") {
    const std::string in_braces = labels.empty() ? "" : "{" + labels + "}";
    text_ += fmt::format("{}{}{} {}\n", name_, suffix, in_braces, number_text(value));
  }
  void one(const char* name, const char* type, const char* help, double value) {
    head(name, type, help);
    sample(value);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string name_;
  std::string text_;
};

void write_step_seconds(MetricsWriter& out, const StepHistogram& steps) {
  out.head("step_seconds", "histogram", "How long training steps took.");
  std::int64_t so_far = 0;
  for (std::size_t i = 0; i < steps.counts.size(); ++i) {
    so_far += steps.counts[i];
    const bool last = i == StepHistogram::kLimits.size();
    const std::string limit = last ? "+Inf" : number_text(StepHistogram::kLimits[i]);
    out.sample(static_cast<double>(so_far), fmt::format("le=\"{}\"", limit), "_bucket");
  }
  out.sample(steps.sum_s, "", "_sum");
  out.sample(static_cast<double>(so_far), "", "_count");
}

}  // namespace

std::string metrics_text(const RunProgress& progress, const MetricsLabels& labels) {
  MetricsWriter out;
  out.head("run_info", "gauge", "The run, in its labels.");
  out.sample(1, fmt::format("run=\"{}\",model=\"{}\",version=\"{}\"", label_text(labels.run),
                            label_text(labels.model), label_text(labels.version)));
  const auto whole = [](std::int64_t value) { return static_cast<double>(value); };
  out.one("steps_total", "counter", "Training steps of this process.", whole(progress.steps));
  out.one("samples_total", "counter", "Samples that this process trained on.",
          whole(progress.samples));
  out.one("step", "gauge", "Steps since the beginning of training.", whole(progress.step));
  out.one("epoch", "gauge", "The epoch, from 1.", whole(progress.epoch + 1));
  out.one("epochs", "gauge", "The last epoch.", whole(progress.epochs));
  if (progress.loss) out.one("loss", "gauge", "The loss of the last step.", *progress.loss);
  if (!progress.logs.empty()) {
    out.head("epoch_metric", "gauge", "Losses and metrics of the last epoch that ended.");
    for (const auto& [name, value] : progress.logs.items()) {
      out.sample(value, fmt::format("name=\"{}\"", label_text(name)));
    }
  }
  write_step_seconds(out, progress.step_seconds);
  out.one("samples_per_second", "gauge", "Samples per second, lately.", progress.samples_per_s);
  out.head("time_seconds_total", "counter",
           "Where the time went, by part, as the mean over the replicas of the chief.");
  for (const auto& [name, share] : parts_of(progress.attribution)) {
    out.sample(share * progress.seconds, fmt::format("part=\"{}\"", name));
  }
  out.one("speed_up", "gauge",
          "Replicas times the share of the time that they compute: how many devices are in use.",
          progress.attribution.compute * whole(std::ssize(progress.devices)));
  out.one("memory_bytes", "gauge", "Allocated on the replica's device that has most.",
          static_cast<double>(progress.memory_bytes));
  out.one("replicas", "gauge", "Replicas of all workers.", whole(std::ssize(progress.devices)));
  out.one("workers", "gauge", "Processes that train together.", progress.workers);
  out.one("batch_samples", "gauge", "Samples of a step on all replicas.", whole(progress.batch));
  if (progress.noise) {
    out.head("noise_scale_samples", "gauge",
             "The gradient noise scale and its 95% limits, in samples.");
    out.sample(progress.noise->value, "limit=\"value\"");
    out.sample(progress.noise->low, "limit=\"low\"");
    out.sample(progress.noise->high, "limit=\"high\"");
  }
  out.one("failures_total", "counter", "Failures of workers after which training went on.",
          whole(progress.failures));
  out.one("warnings_total", "counter", "Warnings, such as losses that are not finite.",
          whole(progress.warnings));
  return out.take();
}

}  // namespace lockstep::cli
