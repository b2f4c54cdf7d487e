// What fit does if a loss is not finite (FitOptions::on_nan), or if gradients overflow so often
// that most steps are skipped.
//
// With a loss scale, single losses and gradients that are not finite are harmless: the step is
// skipped and the scale halved. Only if steps are still skipped at the smallest scale does the
// policy apply. Without a loss scale it applies at the first loss that is not finite.
#include <cmath>

#include "lockstep/train/fit_run.h"

namespace lockstep {
namespace {

constexpr std::int64_t kGoodStateSteps = 500;  // between copies of the model's state
constexpr std::int64_t kMostRestores = 5;      // per call of fit
constexpr std::int64_t kScaleSteps = 64;       // between checks of the loss scale
constexpr std::int64_t kStuckSteps = 16;  // skipped at the smallest scale before on_nan applies
constexpr double kSmallestScale = 1.0;

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

// Reading the loss scale waits for the device, so this reads it only every kScaleSteps steps, or
// after a loss that was not finite.
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
  scale_.stuck = scale <= kSmallestScale && lost == steps ? scale_.stuck + lost : 0;
  const bool often = steps >= kScaleSteps && 2 * lost >= steps;
  if (!scale_.warned && (often || scale <= kSmallestScale)) {
    scale_.warned = true;
    warn(fmt::format(
        "gradients overflow in 16 bits: {} of the last {} steps were skipped; at step {} the loss "
        "scale is {:g}",
        lost, steps, session_.step, scale));
  }
  if (scale_.stuck < kStuckSteps || options_.on_nan == OnNaN::Continue) return;
  trouble_ = fmt::format(
      "gradients still overflow at the smallest loss scale, {:g}: the last {} steps up to step {} "
      "were skipped",
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
    history_.failure =
        history_.restores > 0
            ? fmt::format("{}, after {} returns to an earlier good state", what, history_.restores)
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
  warn(fmt::format(
      "{}; training continues from the state after step {}{} and skips the batches since then",
      what, good_.step(), settable ? fmt::format(" with a learning rate of {:g}", rate) : ""));
}

}  // namespace lockstep
