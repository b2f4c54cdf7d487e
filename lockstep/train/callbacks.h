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

// `mode` is "min", "max", or "auto": higher is better if the name contains "acc", "auc",
// "precision" or "recall", otherwise lower is. UsageError when training begins if the logs will not
// contain the monitored name.
struct EarlyStoppingOptions {
  std::string monitor = "val_loss";
  double min_delta = 0.0;
  std::int64_t patience = 0;
  std::string mode = "auto";
  // Only an epoch that beats this and all earlier epochs resets the patience.
  std::optional<double> baseline = {};
  bool restore_best_weights = false;  // those of the best epoch seen by this call of fit
  std::int64_t start_from_epoch = 0;
};
CallbackRef EarlyStopping(EarlyStoppingOptions options = {});

// Who writes a checkpoint of several workers.
enum class Writers {
  Chief,  // one file
  All,    // each worker a part of it, to a folder that all of them share
};

// The state is copied after a step and written while training goes on; an error of the writing ends
// training after a later step. When fit returns or throws, the last checkpoint is on disk.
//
// If weights or optimizer state are not finite, they are written to another file, with ".nonfinite"
// before the extension, so that the last good checkpoint is kept.
//
// With validation data, an epoch is saved before its validation and again at its end, so that
// nothing is lost if validation fails or is interrupted. With save_best_only, or if the path
// contains a val_… log, it can only be saved after the validation.
struct ModelCheckpointOptions {
  // May contain the epoch (from 1), the step and any log:
  // "run/{epoch:02d}-{val_loss:.3f}.safetensors". Double a literal brace: "a{{b}}".
  std::string path;
  std::string monitor = "val_loss";  // for save_best_only
  bool save_best_only = false;
  bool save_weights_only = false;
  std::string mode = "auto";
  // Also saves in mid-epoch, at this interval of steps; 0: only at the end of epochs.
  std::int64_t every_steps = 0;
  // The same by time: after the first step that ends this long after the last save.
  std::chrono::nanoseconds every = {};
  // False: training waits until the checkpoint is on disk.
  bool asynchronous = true;
  Writers writers = Writers::Chief;
  // Of the files that this callback has written, also before the run was resumed, keeps only so
  // many, the newest; 0: all. An older one is removed when the newer one is on disk.
  std::int64_t keep = 0;
  // Besides these keeps the file of the epoch with the best `monitor`.
  bool keep_best = false;
  // Another name, in the same folder, of the file that was written last; empty: none.
  std::string latest = {};
};
CallbackRef ModelCheckpoint(ModelCheckpointOptions options);

// Sets the learning rate of each epoch from its index and the current rate.
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
// One line per epoch. DataError, naming the file, if it cannot be written.
CallbackRef CSVLogger(CSVLoggerOptions options);

struct TensorBoardOptions {
  std::filesystem::path log_dir = "logs";
  // Also writes the loss of the batch, at this interval of steps; 0: only at the end of epochs.
  std::int64_t update_steps = 0;
};
// Event files in log_dir/train and, with validation data, log_dir/validation: the logs of every
// epoch, the noise scale with its limits, the parts of the time (epoch_time/compute, …), the
// speed-up, and the memory.
CallbackRef TensorBoard(TensorBoardOptions options = {});

// Ends training after the first step whose loss is not finite. FitOptions::on_nan can do so without
// saving that state, or go back to a good one.
CallbackRef TerminateOnNaN();

struct ProgressBarOptions {
  // True: one line that is redrawn while an epoch runs. False: a plain line now and then.
  bool terminal = false;
  int width = 24;  // of the bar
  // False: only a line at the end of each epoch.
  bool while_epoch_runs = true;
};
// Writes at most ten times per second. The stream must outlive the training.
CallbackRef ProgressBar(std::ostream& stream, ProgressBarOptions options = {});

// A callback made of functions; any may be absent.
struct LambdaCallbackOptions {
  std::function<void(Model&)> on_train_begin = {};
  std::function<void(Model&)> on_train_end = {};
  std::function<void(Model&, std::int64_t epoch)> on_epoch_begin = {};
  std::function<void(Model&, std::int64_t epoch, const Logs&)> on_epoch_trained = {};
  std::function<void(Model&, std::int64_t epoch, const Logs&)> on_epoch_end = {};
  std::function<void(Model&, std::int64_t step, const BatchLogs&)> on_batch_end = {};
  std::function<void(Model&, const std::string& message)> on_warning = {};
  // False: on_batch_end uses only the batch's own logs, not running(), and may stop training one
  // step late (Callback::needs_sync).
  bool needs_sync = true;
};
CallbackRef LambdaCallback(LambdaCallbackOptions options);

}  // namespace lockstep
