// What fit does about losses that are not finite (FitOptions::on_nan), and about steps that are
// skipped again and again because gradients overflow.
//
// With a loss scale, single losses and gradients that are not finite are harmless: the step is
// skipped and the scale halved. Only if steps are still skipped at the smallest scale does the
// policy apply. Without a loss scale it applies at the first loss that is not finite.
#include <cmath>

#include "lockstep/train/fit_run.h"

namespace lockstep {
namespace {

constexpr std::int64_t kGoodStateSteps = 500;  // between copies of a good state
constexpr std::int64_t kMostRestores = 5;      // per call of fit
constexpr std::int64_t kScaleSteps = 64;       // between checks of the loss scale
constexpr std::int64_t kStuckSteps = 16;       // skipped at the smallest scale: on_nan applies
constexpr double kLeastScale = 1.0;

}  // namespace

void FitRun::warn(const std::string& message) {
  for_callbacks([&](Callback& callback) { callback.on_warning(model_, message); });
}

bool FitRun::accept_loss(double loss, const StepInfo& info) {
  if (std::isfinite(loss)) return true;
  const bool first = !history_.first_non_finite_step;
  if (first) history_.first_non_finite_step = info.number;
  if (impl_.scales_loss()) {  // watch_loss_scale decides
    scale_.suspect = true;
    return true;
  }
  if (info.number < forgiven_before_) return false;
  const std::string message = fmt::format("the loss was {} at step {} (epoch {}, step {})",
                                          std::isnan(loss) ? "NaN" : "infinite", info.number,
                                          at_.epoch + 1, info.epoch_step);
  if (options_.on_nan == OnNaN::Continue) {
    if (first) warn(message);
    return true;
  }
  if (trouble_.empty()) trouble_ = message;
  return false;
}

// Reads the state of the loss scale; only now and then, since it has to wait for the device.
void FitRun::watch_loss_scale() {
  if (!impl_.scales_loss()) return;
  if (!scale_.suspect && session_.step - scale_.step < kScaleSteps) return;
  in_flight_.finish();
  scale_.suspect = false;
  const std::int64_t skipped = impl_.skipped_steps();
  const std::int64_t steps = session_.step - scale_.step;
  const std::int64_t lost = skipped - scale_.skipped;
  scale_.step = session_.step;
  scale_.skipped = skipped;
  if (lost == 0 || steps == 0) {
    scale_.stuck = 0;
    return;
  }
  const double scale = *model_.loss_scale();
  scale_.stuck = scale <= kLeastScale && lost == steps ? scale_.stuck + lost : 0;
  const bool often = steps >= kScaleSteps && 2 * lost >= steps;
  if (!scale_.warned && (often || scale <= kLeastScale)) {
    scale_.warned = true;
    warn(fmt::format(
        "gradients overflow in 16 bits: {} of the last {} steps changed nothing; the loss scale is "
        "{:g} at step {}",
        lost, steps, scale, session_.step));
  }
  if (scale_.stuck < kStuckSteps || options_.on_nan == OnNaN::Continue) return;
  trouble_ = fmt::format(
      "gradients still overflow at the least loss scale, {:g}: {} steps one after the other "
      "changed "
      "nothing, until step {}",
      scale, scale_.stuck, session_.step);
  scale_.stuck = 0;
}

void FitRun::keep_good_state() {
  if (options_.on_nan != OnNaN::Restore || session_.step < forgiven_before_) return;
  // Metrics belong to one epoch, so each epoch begins with a copy.
  const bool due = !good_.tried_at() || at_.epoch_step == 0 ||
                   session_.step - *good_.tried_at() >= kGoodStateSteps;
  if (!due) return;
  in_flight_.finish();
  if (trouble_.empty() && good_.keep()) good_epoch_ = at_.epoch;
}

void FitRun::follow_policy() {
  in_flight_.finish();
  const std::string what = std::exchange(trouble_, "");
  const bool restores = options_.on_nan == OnNaN::Restore && good_.has();
  if (!restores || history_.restores == kMostRestores) {
    history_.failure = history_.restores > 0
                           ? fmt::format("{}, after training went back to a good state {} times",
                                         what, history_.restores)
                           : what;
    warn(history_.failure + "; training stops");
    return;
  }
  ++history_.restores;
  const bool settable = impl_.options.optimizer.learning_rate() != nullptr;
  const double rate = settable ? model_.learning_rate() / 2 : 0.0;
  good_.restore();
  if (good_epoch_ != at_.epoch) impl_.reset_metrics();
  if (settable) model_.set_learning_rate(rate);
  forgiven_before_ = session_.step;
  warn(fmt::format("{}; back to the state after step {}{}; the batches since are passed over", what,
                   good_.step(),
                   settable ? fmt::format(", with the learning rate {:g}", rate) : ""));
}

}  // namespace lockstep
