#include "lockstep/cli/progress_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/cli/format.h"
#include "lockstep/train/figure.h"

namespace lockstep::cli {
namespace {

// "1:05:09", "0:12"
std::string duration_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::max(0.0, seconds) + 0.5);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

// "epoch 2/5, step 34/100"
std::string place_text(const RunProgress& progress) {
  std::string text =
      fmt::format("epoch {}/{}, step {}", progress.epoch + 1, progress.epochs, progress.epoch_step);
  if (progress.steps_per_epoch) text += fmt::format("/{}", *progress.steps_per_epoch);
  return text;
}

// Nothing if it is not known how many steps there will be.
std::optional<double> done_part(const RunProgress& progress) {
  if (!progress.steps_per_epoch || *progress.steps_per_epoch <= 0 || progress.epochs <= 0) {
    return std::nullopt;
  }
  const double epochs =
      static_cast<double>(progress.epoch) +
      static_cast<double>(progress.epoch_step) / static_cast<double>(*progress.steps_per_epoch);
  return std::clamp(epochs / static_cast<double>(progress.epochs), 0.0, 1.0);
}

std::string speed_text(const RunProgress& progress) {
  if (progress.steps == 0) return "no step yet";
  return fmt::format("{} samples/s, {:.3g} ms per step",
                     count_text(static_cast<std::int64_t>(progress.samples_per_s)),
                     progress.step_s * 1e3);
}

std::string noise_text(const NoiseScale& noise) {
  const auto samples = [](double value) {
    return std::isfinite(value) ? fmt::format("{:.0f}", value) : std::string("any number");
  };
  if (!std::isfinite(noise.value)) return fmt::format("more than {}", samples(noise.low));
  return fmt::format("{} ({} to {})", samples(noise.value), samples(noise.low),
                     samples(noise.high));
}

// The losses as a row of bars, the highest as the tallest.
std::string spark_line(const std::vector<LossPoint>& losses, std::size_t columns) {
  constexpr std::array kBars = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  double low = INFINITY;
  double high = -INFINITY;
  for (const LossPoint& point : losses) {
    if (!std::isfinite(point.loss)) continue;
    low = std::min(low, point.loss);
    high = std::max(high, point.loss);
  }
  if (!(high > low)) return "";
  const std::size_t shown = std::min(columns, losses.size());
  std::string line;
  for (std::size_t i = 0; i < shown; ++i) {
    const double loss = losses[i * losses.size() / shown].loss;
    if (!std::isfinite(loss)) {
      line += ' ';
      continue;
    }
    const double part = (loss - low) / (high - low);
    line += kBars[std::min(kBars.size() - 1, static_cast<std::size_t>(part * kBars.size()))];
  }
  return line;
}

std::string logs_line(const Logs& logs) {
  std::string text;
  for (const auto& [name, value] : logs.items()) {
    if (name == "seconds" || name == "samples_per_s" || name == "lr") continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, figure(value));
  }
  return text;
}

class ProgressView {
 public:
  explicit ProgressView(const TerminalStyle& style)
      : style_(style), columns_(static_cast<std::size_t>(std::max(style.width, 40))) {}

  void line(const std::string& label, const std::string& text) {
    if (text.empty()) return;
    text_ += shortened(fmt::format("{:<9} {}", label, text), columns_, style_) + "\n";
  }
  std::size_t rest() const { return columns_ - 10; }
  void raw(const std::string& text) { text_ += text; }
  std::string take() { return std::move(text_); }

 private:
  const TerminalStyle& style_;
  std::size_t columns_;
  std::string text_;
};

}  // namespace

std::string progress_line(const RunProgress& progress) {
  std::string text = place_text(progress) + "  " + speed_text(progress);
  if (progress.loss) text += "  loss " + figure(*progress.loss);
  if (const std::string where = summary(progress.attribution); !where.empty()) text += "  " + where;
  if (progress.noise) text += "  noise scale " + noise_text(*progress.noise);
  if (!progress.slow.empty()) text += "  " + progress.slow;
  if (progress.failures > 0) text += fmt::format("  {} failures", progress.failures);
  return text;
}

std::string progress_view(const ProgressFile& file, const std::string& run,
                          const TerminalStyle& style) {
  const RunProgress& progress = file.progress;
  ProgressView view(style);
  const std::size_t replicas = progress.devices.size();
  view.line(
      "run",
      fmt::format(
          "{}: {}, {} replica{}{}, for {}", run, file.model, replicas, replicas == 1 ? "" : "s",
          progress.workers > 1 ? fmt::format(" of {} workers", progress.workers) : std::string(),
          duration_text(progress.seconds)));
  std::string at = place_text(progress);
  if (const std::optional<double> done = done_part(progress); done && *done > 0) {
    constexpr std::size_t kBar = 20;
    const auto full = static_cast<std::size_t>(std::lround(*done * kBar));
    at += fmt::format(" [{}{}] {:.0f}%", std::string(full, '='), std::string(kBar - full, ' '),
                      100 * *done);
    if (*done < 1)
      at += fmt::format(", {} left", duration_text(progress.seconds / *done * (1 - *done)));
  }
  view.line("progress", at);
  view.line("speed", speed_text(progress));
  if (progress.loss) {
    std::string loss = figure(*progress.loss);
    if (style.utf8 && view.rest() > loss.size() + 12) {
      loss += "  " + spark_line(progress.losses, view.rest() - loss.size() - 2);
    }
    view.line("loss", loss);
  }
  view.line("epoch", logs_line(progress.logs));
  if (progress.noise) {
    view.line("noise", fmt::format("{} samples; the batch has {}", noise_text(*progress.noise),
                                   progress.batch));
  }
  view.line("memory", bytes_text(static_cast<double>(progress.memory_bytes)) + " per device");
  view.line("slow", progress.slow);
  if (progress.failures > 0) {
    view.line("failures",
              fmt::format("{} of workers, after which training went on", progress.failures));
  }
  view.line("warning", progress.last_warning);
  page::Replica time{.name = "time", .parts = {}};
  for (const auto& [name, share] : parts_of(progress.attribution)) {
    time.parts.emplace_back(name, share);
  }
  if (progress.steps > 0) view.raw(terminal_replicas({time}, style));
  return view.take();
}

}  // namespace lockstep::cli
