// Callback: what a user hooks into fit. Every method may be left out.
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

// What is known when training begins.
struct FitInfo {
  std::int64_t initial_epoch = 0;
  std::int64_t epochs = 1;                      // index behind the last epoch
  std::optional<std::int64_t> steps_per_epoch;  // where it is known
  std::vector<std::string> log_names;           // what the logs of every epoch will hold
  bool validates = false;                       // each epoch, before it ends
};

// A batch that has just been trained on. Valid during the call only.
class BatchLogs {
 public:
  BatchLogs(const Model& model, double loss, std::int64_t samples, std::int64_t samples_in_epoch)
      : model_(model), loss_(loss), samples_(samples), samples_in_epoch_(samples_in_epoch) {}

  double loss() const { return loss_; }  // the mean over this batch
  std::int64_t samples() const { return samples_; }
  std::int64_t samples_in_epoch() const { return samples_in_epoch_; }
  // Loss and metrics since the epoch began. Reads state: ask a few times a second, not every step.
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
  // The steps of an epoch are done, or training was stopped in the middle of it; validation and
  // on_epoch_end come next. The logs have no val_… yet. A run that goes on from what is saved here
  // does the validation and on_epoch_end, and the steps that are missing before.
  virtual void on_epoch_trained(Model& /*model*/, std::int64_t /*epoch*/, const Logs& /*logs*/) {}
  // Not called for an epoch that was interrupted (FitOptions::interrupted) or ended by on_nan.
  virtual void on_epoch_end(Model& /*model*/, std::int64_t /*epoch*/, const Logs& /*logs*/) {}
  // `step` counts from 0 in each epoch.
  virtual void on_batch_end(Model& /*model*/, std::int64_t /*step*/, const BatchLogs& /*logs*/) {}
  // Something that the user should know when it happens: a loss that is not finite, steps that
  // overflow. A sentence without a full stop.
  virtual void on_warning(Model& /*model*/, const std::string& /*message*/) {}
  // Whether on_batch_end of this step looks at the model or at logs.running(), changes the model,
  // or has to stop training right behind the step. Every callback is asked before each
  // on_batch_end, when model.step() counts the step already. Where none does, a GPU may have the
  // next step under way by then; the loss and the numbers of samples are this step's all the same.
  virtual bool looks_at_model(const Model& /*model*/, std::int64_t /*step*/) { return true; }

  // What a checkpoint keeps of it, as text and as tensors, so that a resumed run goes on where it
  // was; restored behind on_train_begin, tensors first. Empty: it keeps nothing.
  virtual std::string save_state() const { return ""; }
  virtual void restore_state(const std::string& /*state*/) {}
  virtual std::vector<Tensor> save_tensors() const { return {}; }
  virtual void restore_tensors(std::vector<Tensor> /*tensors*/) {}
  // What a state belongs to: a resumed run gives it to the callback of this kind, or, where there
  // are several, to the one at the same place among them. By default the class's name.
  virtual std::string kind() const;
  // Whether it shows how far training is, so that fit need not.
  virtual bool shows_progress() const { return false; }
  // Those that write checkpoints run behind the others, whose state they save.
  virtual bool runs_last() const { return false; }
};

using CallbackRef = std::shared_ptr<Callback>;

}  // namespace lockstep
