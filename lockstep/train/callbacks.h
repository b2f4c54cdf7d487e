// The callbacks that come with Lockstep. Names and defaults are Keras's.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>

#include "lockstep/train/callback.h"

namespace lockstep {

// `mode` is "min", "max", or "auto": more is better for what is called accuracy, AUC, precision or
// recall, less for everything else. A monitor that the logs will not hold is a UsageError when
// training begins.
struct EarlyStoppingOptions {
  std::string monitor = "val_loss";
  double min_delta = 0.0;
  std::int64_t patience = 0;
  std::string mode = "auto";
  // Patience begins anew only with an epoch that is better than this and than all before it.
  std::optional<double> baseline = {};
  bool restore_best_weights = false;  // those of the best epoch seen by this call of fit
  std::int64_t start_from_epoch = 0;
};
CallbackRef EarlyStopping(EarlyStoppingOptions options = {});

// A model with weights or optimizer state that are not finite numbers is written beside the file,
// under its name with ".nonfinite" in front of the extension: the last good one stays.
//
// Where there is validation data, an epoch is saved before its validation and again at its end, so
// that nothing is lost if validation fails or is interrupted; the best of save_best_only, and files
// that are named by val_…, can only be saved afterwards.
struct ModelCheckpointOptions {
  // May name the epoch (from 1), the step and any log:
  // "run/{epoch:02d}-{val_loss:.3f}.safetensors". Braces that are to stay are doubled: "a{{b}}".
  std::string path;
  std::string monitor = "val_loss";  // for save_best_only
  bool save_best_only = false;
  bool save_weights_only = false;
  std::string mode = "auto";
  // Also behind every so many steps, in the middle of an epoch; 0: only at the end of epochs.
  std::int64_t every_steps = 0;
  // The same by the clock: after the first step that ends this long after the last save.
  std::chrono::nanoseconds every = {};
};
CallbackRef ModelCheckpoint(ModelCheckpointOptions options);

// The rate for an epoch, from its index and the rate so far.
CallbackRef LearningRateScheduler(std::function<double(std::int64_t epoch, double rate)> schedule);

struct ReduceLROnPlateauOptions {
  std::string monitor = "val_loss";
  double factor = 0.1;
  std::int64_t patience = 10;
  std::string mode = "auto";
  double min_delta = 1e-4;
  std::int64_t cooldown = 0;
  double min_lr = 0.0;
};
CallbackRef ReduceLROnPlateau(ReduceLROnPlateauOptions options = {});

struct CSVLoggerOptions {
  std::filesystem::path path;
  std::string separator = ",";
  bool append = false;
};
// A line an epoch. DataError, naming the file, where it cannot be written.
CallbackRef CSVLogger(CSVLoggerOptions options);

struct TensorBoardOptions {
  std::filesystem::path log_dir = "logs";
  // Also the batch's loss, behind every so many steps; 0: only at the end of epochs.
  std::int64_t update_steps = 0;
};
// Event files in log_dir/train and, where there is validation data, log_dir/validation.
CallbackRef TensorBoard(TensorBoardOptions options = {});

// Ends training after the first step whose loss is not a finite number. FitOptions::on_nan does so
// without saving that state, or goes back to a good one.
CallbackRef TerminateOnNaN();

struct ProgressBarOptions {
  // A line that is written over while an epoch runs; else a plain line now and then.
  bool terminal = false;
  int width = 24;  // of the bar
  // False: nothing but a line at the end of each epoch.
  bool while_epoch_runs = true;
};
// Writes at most ten times a second. The stream must outlive the training.
CallbackRef ProgressBar(std::ostream& stream, ProgressBarOptions options = {});

// Functions as a callback; any may be absent.
struct LambdaCallbackOptions {
  std::function<void(Model&)> on_train_begin = {};
  std::function<void(Model&)> on_train_end = {};
  std::function<void(Model&, std::int64_t epoch)> on_epoch_begin = {};
  std::function<void(Model&, std::int64_t epoch, const Logs&)> on_epoch_trained = {};
  std::function<void(Model&, std::int64_t epoch, const Logs&)> on_epoch_end = {};
  std::function<void(Model&, std::int64_t step, const BatchLogs&)> on_batch_end = {};
  std::function<void(Model&, const std::string& message)> on_warning = {};
  // False: on_batch_end reads of the logs what belongs to the batch, and may stop training a step
  // late (Callback::looks_at_model).
  bool looks_at_model = true;
};
CallbackRef LambdaCallback(LambdaCallbackOptions options);

}  // namespace lockstep
