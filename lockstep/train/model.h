// Model: a network, and everything needed to train it. Names and defaults follow Keras.
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
#include "lockstep/nn/layer.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/metric.h"
#include "lockstep/nn/network.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/passes/memory_options.h"
#include "lockstep/tensor/tensor.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/history.h"
#include "lockstep/train/logs.h"
#include "lockstep/train/strategy.h"

namespace lockstep {

class KernelLibrary;
struct ModelImpl;
struct Plan;
class Recorder;

// Optimizers, losses and metrics may be given by name: "adam", "mse", {"accuracy"}.
struct CompileOptions {
  Strategy strategy = {};  // none: one replica on `device`
  Optimizer optimizer = {};
  Loss loss = {};
  std::vector<Metric> metrics = {};
  std::vector<Metric> weighted_metrics = {};  // these see sample and class weights, as in Keras
  // "float32", "mixed_float16" or "mixed_bfloat16". Mixed: matrix products, convolutions and
  // activations in 16 bits; variables, sums and losses in f32 (passes/precision.h).
  std::string precision = "float32";
  LossScaleOptions loss_scale = {};  // for "mixed_float16" and gradients in float16
  // What saves memory (docs/memory.md); all of it works together.
  std::int64_t accumulate = 1;             // micro-batches per step; 0: as few as fit into memory
  Recompute recompute = {};                // "none", "blocks", "auto", or a budget: "2GiB"
  int shard = 0;                           // of several replicas, ZeRO 1, 2 or 3
  std::size_t gather_bytes = 0;            // with shard 3, for whole parameters; 0: chosen
  std::string offload = "none";            // "optimizer": its state is kept on the host
  std::string gradient_dtype = "float32";  // on the wire; or "bfloat16", "float16"
  // "auto", or bytes ("16GiB"): those of the five that are at their defaults are chosen before the
  // first training step, so that it fits into the memory that there is, or into so many bytes.
  std::string fit_memory = "";
  std::uint64_t seed = 0;                  // for initial weights, dropout and fit's shuffle
  Device* device = nullptr;                // none: every core that the process may use
  const KernelLibrary* kernels = nullptr;  // none: cpu_kernels()
};

// What fit does when the loss is not finite or, in "mixed_float16", when gradients still overflow
// at the smallest loss scale. Callbacks are notified (on_warning); with Continue, of the loss only
// the first time.
enum class OnNaN {
  Continue,  // keeps training, as Keras does
  // Ends training at once. Nothing more is saved, so the last checkpoint remains a good one.
  Stop,
  // Goes back to the last good state (a copy in memory, taken at the beginning of the epoch or
  // later), halves the learning rate unless a schedule sets it, and continues with the next
  // batches. Stops training at the sixth time in one call.
  Restore,
};

// The validation data of fit: batches or tensors.
struct ValidationData : std::optional<Dataset> {
  ValidationData() = default;                                        // no validation
  ValidationData(Dataset batches) : optional(std::move(batches)) {}  // NOLINT: implicit
  ValidationData(std::optional<Dataset> batches) : optional(std::move(batches)) {}  // NOLINT
  ValidationData(const Tensor& x, const Tensor& y, std::int64_t batch_size = 32);
};

struct FitOptions {
  // One past the index of the last epoch: initial_epoch = 2 and epochs = 5 run three epochs.
  std::int64_t epochs = 1;
  std::int64_t initial_epoch = 0;
  ValidationData validation_data = {};
  // If set, an epoch has this many steps, and the next epoch continues in the data where this one
  // stopped.
  std::optional<std::int64_t> steps_per_epoch = {};
  std::optional<std::int64_t> validation_steps = {};
  // Progress on standard output: 0 none, 1 a bar that is redrawn, 2 one line per epoch. Default:
  // 1 on a terminal and 2 elsewhere, or 0 if one of the callbacks shows progress.
  std::optional<int> verbose = {};
  std::vector<CallbackRef> callbacks = {};
  std::map<std::int64_t, double> class_weight = {};  // classes not listed have weight 1
  // A checkpoint to resume from, in mid-epoch if it was written there.
  std::filesystem::path resume = {};
  OnNaN on_nan = OnNaN::Continue;
  // Where the job goes on without a worker that has failed (MultiWorkerOptions::on_failure): after
  // so many steps, every worker copies the state of the run to its own memory, from which all go
  // on. 0: as often as costs 1% of the time.
  std::int64_t copy_state_every = 0;
  // The gradient noise scale (docs/noise-scale.md) is measured in every so many steps; 0: never.
  // Not given: as often as costs 1% of the time. What is trained has the same bits in all cases.
  std::optional<std::int64_t> noise_scale_every = {};
  // Called after every step and between validation batches. If it returns true, fit ends there:
  // checkpoints are written, and a run that resumes from them does the rest.
  std::function<bool()> interrupted = {};
  // Only for fit on tensors; a data set of batches has its own.
  std::int64_t batch_size = 32;
  bool shuffle = true;
  Tensor sample_weight = {};      // (N)
  double validation_split = 0.0;  // the last samples, this fraction of all, before shuffling
};

struct EvaluateOptions {
  std::optional<std::int64_t> steps = {};
  // 0: silent; otherwise one line with the result on standard output. Default: only on a terminal.
  std::optional<int> verbose = {};
  std::int64_t batch_size = 32;  // for tensors
  Tensor sample_weight = {};     // for tensors
};

struct PredictOptions {
  std::optional<std::int64_t> steps = {};
  std::optional<int> verbose = {};  // as in EvaluateOptions
  std::int64_t batch_size = 32;     // for tensors
};

struct OnBatchOptions {
  Tensor sample_weight = {};
  std::map<std::int64_t, double> class_weight = {};
};

struct LoadOptions {
  // Skips variables that the file lacks or has in another shape or dtype, and tensors of the file
  // that the model lacks: for fine-tuning with another head.
  bool skip_mismatch = false;
};

// A handle: copies refer to the same model. Not thread-safe.
class Model {
 public:
  // The functional API.
  Model(std::vector<Symbol> inputs, std::vector<Symbol> outputs, std::string name = "");
  Model(const Symbol& input, const Symbol& output, std::string name = "");
  explicit Model(std::shared_ptr<Network> network);

  void compile(CompileOptions options);
  void compile(Optimizer optimizer, Loss loss, std::vector<Metric> metrics = {});
  bool compiled() const;
  // Creates the variables for samples of this shape (without the batch axis). fit, evaluate and
  // predict do so from the data if needed. A functional model, or a Sequential that begins with an
  // InputLayer, knows its shapes and is always built.
  void build(Shape sample, DType dtype = DType::F32);
  bool built() const;

  // Elements of the data set are batches: (x…, y) or (x…, y, sample_weight).
  History fit(const Dataset& batches, const FitOptions& options = {});
  History fit(const Tensor& x, const Tensor& y, const FitOptions& options = {});
  History fit(const std::vector<Tensor>& x, const Tensor& y, const FitOptions& options = {});
  // The batches must come from the strategy that the model was compiled with.
  History fit(const DistributedBatches& batches, const FitOptions& options = {});

  // "loss" and the metrics over all samples; exact even if the last batch is smaller.
  Logs evaluate(const Dataset& batches, const EvaluateOptions& options = {});
  Logs evaluate(const Tensor& x, const Tensor& y, const EvaluateOptions& options = {});
  Logs evaluate(const std::vector<Tensor>& x, const Tensor& y, const EvaluateOptions& options = {});
  Logs evaluate(const DistributedBatches& batches, const EvaluateOptions& options = {});

  // Output 0 for all samples, concatenated. Labels in the data set are ignored.
  Tensor predict(const Dataset& batches, const PredictOptions& options = {});
  Tensor predict(const Tensor& x, const PredictOptions& options = {});
  Tensor predict(const DistributedBatches& batches, const PredictOptions& options = {});
  // All outputs, for a model with several.
  std::vector<Tensor> predict_outputs(const Dataset& batches, const PredictOptions& options = {});

  // One step on one batch; loss and metrics of this batch alone.
  Logs train_on_batch(const std::vector<Tensor>& x, const Tensor& y,
                      const OnBatchOptions& options = {});
  Logs train_on_batch(const Tensor& x, const Tensor& y, const OnBatchOptions& options = {});
  Logs test_on_batch(const std::vector<Tensor>& x, const Tensor& y,
                     const OnBatchOptions& options = {});
  Logs test_on_batch(const Tensor& x, const Tensor& y, const OnBatchOptions& options = {});
  Tensor predict_on_batch(const Tensor& x);

  // As part of a larger model: called on Values it adds nodes to their graph; on Symbols it is a
  // layer.
  Value operator()(Value input, const CallOptions& options = {}) const;
  Value operator()(std::span<const Value> inputs, const CallOptions& options = {}) const;
  Symbol operator()(const Symbol& input) const;
  operator Layer() const;  // NOLINT: a model is a layer
  const std::shared_ptr<Network>& network() const;

  std::vector<VariableRef> variables() const;
  std::vector<VariableRef> trainable_variables() const;
  Tensor value(const VariableRef& variable) const;  // a copy
  void set_value(const VariableRef& variable, const Tensor& value);
  // The values of all the model's variables (not the optimizer's), in the order of variables().
  std::vector<Tensor> weights() const;
  void set_weights(const std::vector<Tensor>& weights);
  std::int64_t parameter_count() const;
  std::string summary() const;

  // The rate that the next step will use. It can be set unless a schedule determines it.
  double learning_rate() const;
  void set_learning_rate(double rate);
  // The factor on the loss in the next step in "mixed_float16"; nothing in other precisions.
  std::optional<double> loss_scale() const;
  // Steps trained so far. Random numbers depend on it. (Schedules do not count skipped steps.)
  std::int64_t step() const;
  // For callbacks: ends fit after the current step or epoch, with validation and on_epoch_end.
  // (FitOptions::interrupted ends it without them.)
  void stop_training();

  // Weights only, under the variables' names; any program that reads safetensors can load them.
  void save_weights(const std::filesystem::path& file) const;
  void load_weights(const std::filesystem::path& file, const LoadOptions& options = {});
  // Everything: weights, the optimizer's state and, if called inside fit, the position in the epoch
  // and in the data, so that fit({.resume = file}) continues as if it had never stopped.
  void save(const std::filesystem::path& file) const;
  void load(const std::filesystem::path& file);

  // The current loss and metrics.
  Logs read_metrics() const;
  // For callbacks: where the time of the running fit went so far, as the mean over all replicas.
  Attribution attribution() const;
  // For callbacks: the noise scale measured in the running fit, if it is known by now.
  std::optional<NoiseScale> noise_scale() const;
  const Recorder& recorder() const;
  // Sentences for the user about the steps so far: probable mistakes (a loss that expects
  // probabilities but gets logits, say), and what is slow on the devices and why, as far as their
  // kernels know. ProgressBar prints them.
  std::vector<std::string> remarks() const;
  // For tools: the plan of one training step (or prediction) on batches of these types.
  const Plan& training_plan(const std::vector<ValueType>& inputs, const ValueType& labels);
  const Plan& prediction_plan(const std::vector<ValueType>& inputs);

 protected:
  std::shared_ptr<ModelImpl> impl_;

 private:
  friend ModelImpl& impl_of(const Model& model);  // model_impl.h
  friend Model model_of(std::shared_ptr<ModelImpl> impl);
  explicit Model(std::shared_ptr<ModelImpl> impl) : impl_(std::move(impl)) {}
};

// A chain of layers.
class Sequential : public Model {
 public:
  explicit Sequential(std::vector<Layer> layers = {}, std::string name = "");
  Sequential(std::initializer_list<Layer> layers);
  void add(const Layer& layer);
};

}  // namespace lockstep
