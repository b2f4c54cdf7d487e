// Callback: hooks into fit. All methods are optional.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/tensor/tensor.h"
#include "lockstep/train/logs.h"

namespace lockstep {

class Model;

// What fit knows when training begins.
struct FitInfo {
  std::int64_t initial_epoch = 0;
  std::int64_t epochs = 1;                      // one past the last epoch
  std::optional<std::int64_t> steps_per_epoch;  // if known
  std::vector<std::string> log_names;           // in the logs of every epoch
  bool validates = false;                       // each epoch, before it ends
  // Training goes on after the failure of a worker: callbacks are told a second time that it
  // begins, and see the steps and epochs since the last copy of its state once more.
  bool recovered = false;
};

// A batch that has just been trained on. Valid during the call only.
class BatchLogs {
 public:
  BatchLogs(const Model& model, double loss, std::int64_t samples, std::int64_t samples_in_epoch)
      : model_(model), loss_(loss), samples_(samples), samples_in_epoch_(samples_in_epoch) {}

  double loss() const { return loss_; }  // the mean over this batch
  std::int64_t samples() const { return samples_; }
  std::int64_t samples_in_epoch() const { return samples_in_epoch_; }
  // Loss and metrics since the epoch began. Reads device state: call it a few times per second, not
  // every step.
  Logs running() const;

 private:
  const Model& model_;
  double loss_;
  std::int64_t samples_;
  std::int64_t samples_in_epoch_;
};

class Callback {
 public:
  virtual ~Callback() = default;

  virtual void on_train_begin(Model& /*model*/, const FitInfo& /*info*/) {}
  virtual void on_train_end(Model& /*model*/) {}
  virtual void on_epoch_begin(Model& /*model*/, std::int64_t /*epoch*/) {}
  // The steps of an epoch are done, or training was stopped in mid-epoch; validation and
  // on_epoch_end come next. The logs have no val_… yet. A run that resumes from a checkpoint saved
  // here first runs the missing steps, then the validation and on_epoch_end.
  virtual void on_epoch_trained(Model& /*model*/, std::int64_t /*epoch*/, const Logs& /*logs*/) {}
  // Not called for an epoch that was interrupted (FitOptions::interrupted) or ended by on_nan.
  virtual void on_epoch_end(Model& /*model*/, std::int64_t /*epoch*/, const Logs& /*logs*/) {}
  // `step` counts from 0 in each epoch.
  virtual void on_batch_end(Model& /*model*/, std::int64_t /*step*/, const BatchLogs& /*logs*/) {}
  // Something the user should know at once: a loss that is not finite, steps that overflow. The
  // message is a sentence without a full stop.
  virtual void on_warning(Model& /*model*/, const std::string& /*message*/) {}
  // Whether on_batch_end of this step reads the model or logs.running(), changes the model, or must
  // be able to stop training right after the step. Called on every callback before each
  // on_batch_end; model.step() already includes the step. If all return false, the next step may
  // already be in flight on a GPU; the loss and sample counts are still those of this step.
  virtual bool needs_sync(const Model& /*model*/, std::int64_t /*step*/) { return true; }
  // With several workers: what the chief's copy of this callback answered. What a callback then
  // does in on_batch_end must be the same on all of them, so one that goes by a clock takes this
  // answer instead of its own.
  virtual void agreed_sync(bool /*needed*/) {}

  // The state that a checkpoint stores for a resumed run, as text and as tensors; restored after
  // on_train_begin, tensors first. Empty: no state.
  virtual std::string save_state() const { return ""; }
  virtual void restore_state(const std::string& /*state*/) {}
  virtual std::vector<Tensor> save_tensors() const { return {}; }
  virtual void restore_tensors(std::vector<Tensor> /*tensors*/) {}
  // Identifies the owner of a saved state: a resumed run restores it to the callback of this kind
  // or, if there are several, to the one at the same position among them. Default: the class name.
  virtual std::string kind() const;
  // Whether it shows the progress of training, so that fit does not have to.
  virtual bool shows_progress() const { return false; }
  // True for callbacks that write checkpoints: they run after the others, whose state they save.
  virtual bool runs_last() const { return false; }
};

using CallbackRef = std::shared_ptr<Callback>;

}  // namespace lockstep
