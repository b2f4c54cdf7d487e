#include "lockstep/train/run_progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/profile/recorder.h"
#include "lockstep/train/model_impl.h"

namespace lockstep {
namespace {

constexpr std::int64_t kReportingShare = 150;  // a report in so many times its own duration
constexpr std::size_t kMostLosses = 128;

// The worker or, in one process, the replica that the others wait for, if it matters.
std::string slow_text(const ModelImpl& impl, const std::vector<std::string>& devices) {
  if (impl.stragglers != nullptr && impl.stragglers->now()) return impl.stragglers->now()->text();
  constexpr double kMuch = 0.05;
  if (!impl.replica_attribution || impl.current->world().workers() > 1) return "";
  const std::vector<Attribution> all = impl.replica_attribution();
  if (all.size() < 2 || devices.size() < all.size()) return "";
  const auto [least, most] = std::ranges::minmax_element(all, {}, &Attribution::wait);
  if (most->wait - least->wait < kMuch) return "";
  return fmt::format("{} is the slowest replica: {} waits for it {:.0f}% of the time",
                     devices[static_cast<std::size_t>(least - all.begin())],
                     devices[static_cast<std::size_t>(most - all.begin())], 100 * most->wait);
}

class ProgressReporter final : public Callback {
 public:
  explicit ProgressReporter(RunProgressOptions options) : options_(std::move(options)) {
    require(options_.report != nullptr, "[run progress] give a function to report to");
  }

  void on_train_begin(Model& model, const FitInfo& info) override {
    reports_ = is_chief(model);
    if (!info.recovered) {
      now_ = {};
      curve_ = LearningCurve(kMostLosses);
    } else {
      ++now_.failures;
      curve_.go_back_to(model.step());
    }
    now_.step = model.step();
    now_.epochs = info.epochs;
    now_.epoch = info.initial_epoch;
    now_.steps_per_epoch = info.steps_per_epoch;
    interval_ns_ = options_.every.count();
    report(model);
  }

  void on_epoch_begin(Model& model, std::int64_t epoch) override {
    now_.epoch = epoch;
    now_.epoch_step = 0;
    step_began_ns_ = training_ns(model);
  }

  bool needs_sync(const Model&, std::int64_t) override {
    return due_ = reports_ && now_ns() - reported_ns_ >= interval_ns_;
  }
  void agreed_sync(bool needed) override { due_ = needed; }

  void on_batch_end(Model& model, std::int64_t step, const BatchLogs& logs) override {
    if (!reports_) return;
    const std::int64_t now = training_ns(model);
    const double seconds = static_cast<double>(now - step_began_ns_) * 1e-9;
    step_began_ns_ = now;
    now_.step_seconds.add(seconds);
    since_s_ += seconds;
    ++since_steps_;
    since_samples_ += logs.samples();
    ++now_.steps;
    now_.samples += logs.samples();
    now_.batch = logs.samples();
    now_.epoch_step = step + 1;
    now_.loss = logs.loss();
    curve_.add_loss(now_.step, logs.loss());
    ++now_.step;
    if (due_) report(model);
  }

  void on_epoch_end(Model& model, std::int64_t, const Logs& logs) override {
    now_.logs = logs;
    report(model);
  }

  void on_warning(Model&, const std::string& message) override {
    ++now_.warnings;
    now_.last_warning = message;
  }

  void on_train_end(Model& model) override {
    now_.ended = true;
    report(model);
    now_.ended = false;
  }

 private:
  // The clock without planning, validation and saving.
  static std::int64_t training_ns(Model& model) {
    return now_ns() - impl_of(model).session().phases().ns();
  }

  void report(Model& model) {
    if (!reports_) return;
    const std::int64_t begin = now_ns();
    ModelImpl& impl = impl_of(model);
    const Session& session = impl.session();
    now_.seconds = impl.attributed_seconds ? impl.attributed_seconds() : 0;
    if (since_steps_ > 0) {
      now_.step_s = since_s_ / static_cast<double>(since_steps_);
      now_.samples_per_s = static_cast<double>(since_samples_) / std::max(since_s_, 1e-9);
    }
    since_s_ = 0;
    since_steps_ = since_samples_ = 0;
    now_.attribution = model.attribution();
    now_.devices = session.world().names();
    now_.workers = session.world().workers();
    now_.memory_bytes = session.resident_bytes();
    now_.noise = model.noise_scale();
    now_.slow = slow_text(impl, now_.devices);
    now_.losses = curve_.losses();
    options_.report(now_);
    reported_ns_ = now_ns();
    interval_ns_ = std::max(options_.every.count(), kReportingShare * (reported_ns_ - begin));
  }

  RunProgressOptions options_;
  bool reports_ = true;  // of several workers, the chief does
  bool due_ = false;     // after this step
  RunProgress now_;
  LearningCurve curve_{kMostLosses};
  std::int64_t reported_ns_ = 0;
  std::int64_t interval_ns_ = 0;
  std::int64_t step_began_ns_ = 0;
  double since_s_ = 0;  // of the steps since the last report
  std::int64_t since_steps_ = 0;
  std::int64_t since_samples_ = 0;
};

}  // namespace

void StepHistogram::add(double seconds) {
  const auto at = std::ranges::lower_bound(kLimits, seconds);
  ++counts[static_cast<std::size_t>(at - kLimits.begin())];
  sum_s += seconds;
}

std::int64_t StepHistogram::count() const {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

CallbackRef RunProgressReporter(RunProgressOptions options) {
  return std::make_shared<ProgressReporter>(std::move(options));
}

}  // namespace lockstep
