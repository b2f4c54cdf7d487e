// Model: a network with what it takes to train it. Names and defaults follow Keras.
//
//   ls::Sequential model({ls::Dense(128, {.activation = "relu"}),
//                         ls::Dense(10, {.activation = "softmax"})});
//   model.compile({.optimizer = "adam",
//                  .loss = "sparse_categorical_crossentropy",
//                  .metrics = {"accuracy"}});
//   ls::History history = model.fit(train.batch(64), {.epochs = 5});
#pragma once

#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/kernels/kernel.h"
#include "lockstep/nn/layer.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/metric.h"
#include "lockstep/nn/network.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/plan/plan.h"
#include "lockstep/profile/recorder.h"
#include "lockstep/tensor/tensor.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/history.h"
#include "lockstep/train/logs.h"
#include "lockstep/train/strategy.h"

namespace lockstep {

// Optimizers, losses and metrics may be named: "adam", "mse", {"accuracy"}.
struct CompileOptions {
  Strategy strategy = {};  // none: one replica on `device`
  Optimizer optimizer = {};
  Loss loss = {};
  std::vector<Metric> metrics = {};
  std::vector<Metric> weighted_metrics = {};  // these see sample and class weights, as in Keras
  // "float32", "mixed_float16" or "mixed_bfloat16": products and activations in 16 bits, variables,
  // sums and losses in f32 (passes/precision.h).
  std::string precision = "float32";
  LossScaleOptions loss_scale = {};        // of "mixed_float16"
  std::uint64_t seed = 0;                  // of initial weights, dropout and fit's shuffle
  Device* device = nullptr;                // none: every core that the process may use
  const KernelLibrary* kernels = nullptr;  // none: cpu_kernels()
};

// What fit does when the loss is not a finite number, or, in "mixed_float16", when gradients still
// overflow at the least loss scale. Each is told to callbacks (on_warning).
enum class OnNaN {
  Continue,  // goes on, as Keras does
  // Ends training at once. Nothing is saved any more, so that the last checkpoint stays a good one.
  Stop,
  // Goes back to the last good state (a copy in memory, of the beginning of the epoch or younger)
  // and on with the batches that follow and half the learning rate, where no schedule decides it;
  // at the sixth time in a call it stops.
  Restore,
};

// What fit validates with: batches, or tensors.
struct ValidationData : std::optional<Dataset> {
  ValidationData() = default;                                        // with nothing
  ValidationData(Dataset batches) : optional(std::move(batches)) {}  // NOLINT: batches are such
  ValidationData(std::optional<Dataset> batches) : optional(std::move(batches)) {}  // NOLINT
  ValidationData(const Tensor& x, const Tensor& y, std::int64_t batch_size = 32);
};

struct FitOptions {
  // The index behind the last epoch: with initial_epoch = 2 and epochs = 5, three are run.
  std::int64_t epochs = 1;
  std::int64_t initial_epoch = 0;
  ValidationData validation_data = {};
  // An epoch then has so many steps, and the next one goes on in the data where this one stopped.
  std::optional<std::int64_t> steps_per_epoch = {};
  std::optional<std::int64_t> validation_steps = {};
  // Progress on standard output: 0 none, 1 a bar that is drawn anew, 2 a line per epoch. Not given:
  // 1 on a terminal and 2 elsewhere, unless one of the callbacks shows progress.
  std::optional<int> verbose = {};
  std::vector<CallbackRef> callbacks = {};
  std::map<std::int64_t, double> class_weight = {};  // classes that are not named weigh 1
  // A checkpoint to go on from, in the middle of an epoch where it was written there.
  std::filesystem::path resume = {};
  OnNaN on_nan = OnNaN::Continue;
  // Asked after every step and between batches of validation; true ends fit there: checkpoints are
  // written, and what was not done is left to a run that resumes from them.
  std::function<bool()> interrupted = {};
  // For tensors; a data set of batches has decided these.
  std::int64_t batch_size = 32;
  bool shuffle = true;
  Tensor sample_weight = {};      // (N)
  double validation_split = 0.0;  // this fraction of the samples, the last ones, before shuffling
};

struct EvaluateOptions {
  std::optional<std::int64_t> steps = {};
  // A line on standard output with the result: 0 none, else one. Not given: on a terminal.
  std::optional<int> verbose = {};
  std::int64_t batch_size = 32;  // for tensors
  Tensor sample_weight = {};     // for tensors
};

struct PredictOptions {
  std::optional<std::int64_t> steps = {};
  std::optional<int> verbose = {};  // as in EvaluateOptions
  std::int64_t batch_size = 32;     // for tensors
};

struct BatchOptionsOnce {
  Tensor sample_weight = {};
  std::map<std::int64_t, double> class_weight = {};
};

struct LoadOptions {
  // Leaves variables alone that the file does not have, or has in another shape, and tensors of the
  // file that the model does not have: for fine-tuning under another head.
  bool skip_mismatch = false;
};

// A handle; copies are the same model. One thread at a time.
class Model {
 public:
  // The functional form.
  Model(std::vector<Symbol> inputs, std::vector<Symbol> outputs, std::string name = "");
  Model(const Symbol& input, const Symbol& output, std::string name = "");
  explicit Model(std::shared_ptr<Network> network);

  void compile(CompileOptions options);
  void compile(Optimizer optimizer, Loss loss, std::vector<Metric> metrics = {});
  bool compiled() const;
  // Makes the variables for samples of this shape (without the batch). fit and the others do it by
  // themselves from the data. A functional model, or a Sequential that begins with an InputLayer,
  // knows its shapes and is always built.
  void build(Shape sample, DType dtype = DType::F32);
  bool built() const;

  // Elements of the data set are batches: (x…, y) or (x…, y, sample_weight).
  History fit(const Dataset& batches, const FitOptions& options = {});
  History fit(const Tensor& x, const Tensor& y, const FitOptions& options = {});
  History fit(const std::vector<Tensor>& x, const Tensor& y, const FitOptions& options = {});
  // Of the strategy that the model was compiled with.
  History fit(const DistributedBatches& batches, const FitOptions& options = {});

  // "loss" and the metrics over all samples: exact, whatever the size of the last batch.
  Logs evaluate(const Dataset& batches, const EvaluateOptions& options = {});
  Logs evaluate(const Tensor& x, const Tensor& y, const EvaluateOptions& options = {});
  Logs evaluate(const std::vector<Tensor>& x, const Tensor& y, const EvaluateOptions& options = {});
  Logs evaluate(const DistributedBatches& batches, const EvaluateOptions& options = {});

  // Output 0 for all samples, one behind the other. Labels in the data set are passed over.
  Tensor predict(const Dataset& batches, const PredictOptions& options = {});
  Tensor predict(const Tensor& x, const PredictOptions& options = {});
  Tensor predict(const DistributedBatches& batches, const PredictOptions& options = {});
  // Every output of a model with several.
  std::vector<Tensor> predict_outputs(const Dataset& batches, const PredictOptions& options = {});

  // One step on one batch; loss and metrics of this batch alone.
  Logs train_on_batch(const std::vector<Tensor>& x, const Tensor& y,
                      const BatchOptionsOnce& options = {});
  Logs train_on_batch(const Tensor& x, const Tensor& y, const BatchOptionsOnce& options = {});
  Logs test_on_batch(const std::vector<Tensor>& x, const Tensor& y,
                     const BatchOptionsOnce& options = {});
  Logs test_on_batch(const Tensor& x, const Tensor& y, const BatchOptionsOnce& options = {});
  Tensor predict_on_batch(const Tensor& x);

  // As a piece of a larger one: on Values it writes nodes; on Symbols it is a layer.
  Value operator()(Value input, const CallOptions& options = {}) const;
  Value operator()(std::span<const Value> inputs, const CallOptions& options = {}) const;
  Symbol operator()(const Symbol& input) const;
  operator Layer() const;  // NOLINT: a model is a layer
  const std::shared_ptr<Network>& network() const;

  std::vector<VariableRef> variables() const;
  std::vector<VariableRef> trainable_variables() const;
  Tensor value(const VariableRef& variable) const;  // a copy
  void set_value(const VariableRef& variable, const Tensor& value);
  // All variables of the model (not the optimizer's), in the order of variables().
  std::vector<Tensor> weights() const;
  void set_weights(const std::vector<Tensor>& weights);
  std::int64_t parameter_count() const;
  std::string summary() const;

  // The rate that the next step will use. It can be set where no schedule decides.
  double learning_rate() const;
  void set_learning_rate(double rate);
  // What a model in "mixed_float16" multiplies its loss with in the next step; nothing in others.
  std::optional<double> loss_scale() const;
  // Steps trained so far: what random numbers count by. (Schedules leave out skipped steps.)
  std::int64_t step() const;
  // Ends fit after the step or epoch that is running, with validation and on_epoch_end; for
  // callbacks. (FitOptions::interrupted ends it at once.)
  void stop_training();

  // Weights only, under the variables' names; any program that reads safetensors reads them.
  void save_weights(const std::filesystem::path& file) const;
  void load_weights(const std::filesystem::path& file, const LoadOptions& options = {});
  // Everything: weights, the optimizer's state, and, from inside fit, the place in the epoch and
  // in the data, so that fit({.resume = file}) goes on as if it had never stopped.
  void save(const std::filesystem::path& file) const;
  void load(const std::filesystem::path& file);

  // Loss and metrics as they stand.
  Logs read_metrics() const;
  // Where the time of the fit that is running went so far, over all replicas; for callbacks.
  Attribution attribution() const;
  const Recorder& recorder() const;
  // Sentences for the user: what of the steps so far is probably not meant (a loss of probabilities
  // behind logits, say), and what is slow on the devices, and why, as far as their kernels know.
  // ProgressBar writes them.
  std::vector<std::string> remarks() const;
  // The plan of one training step (or of a prediction) on batches of these types; for tools.
  const Plan& training_plan(const std::vector<ValueType>& inputs, const ValueType& labels);
  const Plan& prediction_plan(const std::vector<ValueType>& inputs);

  struct Impl;
  Impl& impl() const { return *impl_; }
  explicit Model(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

 protected:
  std::shared_ptr<Impl> impl_;
};

// One layer after the other.
class Sequential : public Model {
 public:
  explicit Sequential(std::vector<Layer> layers = {}, std::string name = "");
  Sequential(std::initializer_list<Layer> layers);
  void add(const Layer& layer);
};

}  // namespace lockstep
