// ProgressBar: one line per epoch. It reads the clock at every step and does anything else at most
// ten times per second, so that it does not slow down training.
#include <algorithm>
#include <ostream>

#include "lockstep/base/error.h"
#include "lockstep/profile/recorder.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/figure.h"
#include "lockstep/train/model_impl.h"

namespace lockstep {
namespace {

constexpr std::int64_t kRedrawNs = 100'000'000;        // on a terminal
constexpr std::int64_t kPlainLineNs = 10'000'000'000;  // elsewhere

std::string minutes(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

// loss 0.3142  accuracy 0.8750: the logs that are not shown elsewhere in the line.
std::string numbers(const Logs& logs) {
  std::string text;
  for (const auto& [name, value] : logs.items()) {
    if (name == "seconds" || name == "samples_per_s" || name == "lr") continue;
    text += "  " + name + " " + figure(value);
  }
  return text;
}

std::string slow_worker(const Model& model) {
  const StragglerWatch* const watch = impl_of(model).stragglers;
  return watch != nullptr && watch->now() ? "  " + watch->now()->text() : std::string();
}

class ProgressBarCallback final : public Callback {
 public:
  ProgressBarCallback(std::ostream& stream, ProgressBarOptions options)
      : stream_(stream), options_(options) {}

  bool shows_progress() const override { return true; }
  void on_train_begin(Model& model, const FitInfo& info) override {
    chief_ = is_chief(model);
    info_ = info;
    remarked_.clear();
  }

  void on_epoch_begin(Model&, std::int64_t epoch) override {
    epoch_ = epoch;
    drawn_ = 0;
    begin_ns_ = now_ns();
    drawn_ns_ = begin_ns_;
    samples_before_ = -1;
  }

  bool needs_sync(const Model&, std::int64_t) override {
    const std::int64_t passed = now_ns() - drawn_ns_;
    return due_ = options_.while_epoch_runs &&
                  passed >= (options_.terminal ? kRedrawNs : kPlainLineNs);
  }

  void agreed_sync(bool needed) override { due_ = needed; }

  void on_batch_end(Model& model, std::int64_t step, const BatchLogs& logs) override {
    if (samples_before_ < 0) samples_before_ = logs.samples_in_epoch() - logs.samples();
    if (!due_) return;
    const std::int64_t now = now_ns();
    drawn_ns_ = now;
    write_remarks(model);
    const double seconds = static_cast<double>(now - begin_ns_) * 1e-9;
    const double rate =
        static_cast<double>(logs.samples_in_epoch() - samples_before_) / std::max(seconds, 1e-9);
    std::string line = head() + bar(step + 1) + fmt::format("  {:.0f} samples/s", rate);
    if (info_.steps_per_epoch) {
      const double left = static_cast<double>(*info_.steps_per_epoch - step - 1);
      line += fmt::format("  {} left",
                          minutes(std::max(0.0, left) * seconds / static_cast<double>(step + 1)));
    }
    write(line + numbers(logs.running()) + "  " + summary(model.attribution()) + slow_worker(model),
          /*last=*/!options_.terminal);
  }

  void on_warning(Model&, const std::string& message) override {
    write("warning: " + message, /*last=*/true);
  }

  // Keeps the line of an interrupted epoch.
  void on_train_end(Model&) override {
    if (drawn_ > 0 && chief_) stream_ << std::endl;
    drawn_ = 0;
  }

  void on_epoch_end(Model& model, std::int64_t, const Logs& logs) override {
    write_remarks(model);
    write(fmt::format("{}{:.1f} s  {:.0f} samples/s{}  {}{}", head(), logs.at("seconds"),
                      logs.at("samples_per_s"), numbers(logs), summary(model.attribution()),
                      slow_worker(model)),
          /*last=*/true);
  }

 private:
  std::string head() const {
    const auto width = std::to_string(info_.epochs).size();
    return fmt::format("epoch {:>{}}/{}  ", epoch_ + 1, width, info_.epochs);
  }

  std::string bar(std::int64_t done) const {
    if (!info_.steps_per_epoch || *info_.steps_per_epoch <= 0) return fmt::format("step {}", done);
    const std::int64_t all = *info_.steps_per_epoch;
    const auto full = static_cast<std::size_t>(options_.width * std::min(done, all) / all);
    const auto width = static_cast<std::size_t>(options_.width);
    return fmt::format("[{}{}] {}/{}", std::string(full, '='), std::string(width - full, ' '), done,
                       all);
  }

  // Prints each remark once per training, above the line of the epoch.
  void write_remarks(const Model& model) {
    for (const std::string& remark : model.remarks()) {
      if (std::ranges::find(remarked_, remark) != remarked_.end()) continue;
      write("note: " + remark, /*last=*/true);
      remarked_.push_back(remark);
    }
  }

  // On a terminal, overwrites the previous line and blanks out what is left of it.
  void write(const std::string& line, bool last) {
    if (!chief_) return;
    if (options_.terminal) {
      const std::size_t rest = drawn_ > line.size() ? drawn_ - line.size() : 0;
      stream_ << '\r' << line << std::string(rest, ' ');
      drawn_ = line.size();
    } else {
      stream_ << line;
    }
    if (last) {
      stream_ << '\n';
      drawn_ = 0;
    }
    stream_ << std::flush;
  }

  std::ostream& stream_;
  ProgressBarOptions options_;
  bool chief_ = true;  // of several workers, one shows the progress
  FitInfo info_;
  std::vector<std::string> remarked_;
  std::int64_t epoch_ = 0;
  std::int64_t begin_ns_ = 0;
  std::int64_t drawn_ns_ = 0;
  bool due_ = false;                  // a line, after this step
  std::int64_t samples_before_ = -1;  // samples that a resumed epoch had before this call
  std::size_t drawn_ = 0;
};

}  // namespace

CallbackRef ProgressBar(std::ostream& stream, ProgressBarOptions options) {
  require(options.width > 0, "[progress bar] the width must be positive, not {}", options.width);
  return std::make_shared<ProgressBarCallback>(stream, options);
}

}  // namespace lockstep
