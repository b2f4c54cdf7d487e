// EarlyStopping and ReduceLROnPlateau react to the same logs as Keras's do (golden/callbacks.h).
#include <gtest/gtest.h>

#include "golden/callbacks.h"
#include "lockstep/train/model_impl.h"
#include "train/problem.h"

namespace lockstep::testing {
namespace {

constexpr const char* kMonitor = "val_loss";

// A model whose weights are the number of the epoch they belong to.
struct Numbered {
  Sequential model{InputLayer({.shape = {1}}), Dense({.units = 1, .use_bias = false})};

  Numbered() {
    model.compile({.optimizer = SGD({.learning_rate = 1.0}), .loss = MeanSquaredError()});
  }
  void set(std::int64_t epoch) {
    model.set_weights({Tensor::of(std::vector<float>{static_cast<float>(epoch)}, {1, 1})});
  }
  std::int64_t get() const { return static_cast<std::int64_t>(model.weights()[0].item()); }
};

Logs logs_of(double value) {
  Logs logs;
  logs.set(kMonitor, value);
  return logs;
}

FitInfo monitored() {
  FitInfo info;
  info.log_names = {kMonitor};
  return info;
}

TEST(EarlyStopping, StopsAndRestoresLikeKeras) {
  Numbered numbered;
  Model& model = numbered.model;
  for (std::size_t i = 0; i < kEarlyStoppingCases.size(); ++i) {
    const EarlyStoppingCase& c = kEarlyStoppingCases[i];
    const CallbackRef callback = EarlyStopping({.monitor = kMonitor,
                                                .min_delta = c.min_delta,
                                                .patience = c.patience,
                                                .mode = c.mode,
                                                .baseline = c.baseline,
                                                .restore_best_weights = c.restore_best_weights,
                                                .start_from_epoch = c.start_from_epoch});
    impl_of(model).stopping = false;
    callback->on_train_begin(model, monitored());
    std::size_t epochs = 0;
    while (epochs < c.values.size() && !impl_of(model).stopping) {
      numbered.set(static_cast<std::int64_t>(epochs));
      callback->on_epoch_end(model, static_cast<std::int64_t>(epochs), logs_of(c.values[epochs]));
      ++epochs;
    }
    callback->on_train_end(model);
    EXPECT_EQ(epochs, c.epochs) << "case " << i;
    EXPECT_EQ(numbered.get(), c.weights) << "case " << i;
  }
}

TEST(EarlyStopping, ABaselineThatIsNotReachedKeepsTheBestEpoch) {
  // The loss falls slowly but stays above the baseline: patience runs out, and the best is kept.
  Numbered numbered;
  const CallbackRef callback = EarlyStopping(
      {.monitor = kMonitor, .patience = 3, .baseline = 0.5, .restore_best_weights = true});
  callback->on_train_begin(numbered.model, monitored());
  impl_of(numbered.model).stopping = false;
  std::int64_t epoch = 0;
  for (const double loss : {1.0, 0.9, 0.8, 0.7, 0.75}) {
    EXPECT_FALSE(impl_of(numbered.model).stopping) << "epoch " << epoch;
    numbered.set(epoch);
    callback->on_epoch_end(numbered.model, epoch++, logs_of(loss));
  }
  EXPECT_TRUE(impl_of(numbered.model).stopping);
  callback->on_train_end(numbered.model);
  EXPECT_EQ(numbered.get(), 3);
}

TEST(ReduceLROnPlateau, LowersTheRateLikeKeras) {
  Numbered numbered;
  Model& model = numbered.model;
  for (std::size_t i = 0; i < kReduceLRCases.size(); ++i) {
    const ReduceLRCase& c = kReduceLRCases[i];
    const CallbackRef callback = ReduceLROnPlateau({.monitor = kMonitor,
                                                    .factor = 0.5,
                                                    .patience = c.patience,
                                                    .mode = c.mode,
                                                    .min_delta = c.min_delta,
                                                    .cooldown = c.cooldown,
                                                    .min_lr = c.min_lr});
    model.set_learning_rate(1.0);
    callback->on_train_begin(model, monitored());
    std::vector<double> rates;
    for (std::size_t epoch = 0; epoch < c.values.size(); ++epoch) {
      callback->on_epoch_end(model, static_cast<std::int64_t>(epoch), logs_of(c.values[epoch]));
      rates.push_back(model.learning_rate());
    }
    EXPECT_EQ(rates, c.rates) << "case " << i;
  }
}

}  // namespace
}  // namespace lockstep::testing
