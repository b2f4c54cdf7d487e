// What a Model holds. Shared by the files that implement it.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/train/callbacks.h"
#include "lockstep/train/checkpoint.h"
#include "lockstep/train/checkpoint_files.h"
#include "lockstep/train/checkpoint_writer.h"
#include "lockstep/train/model.h"
#include "lockstep/train/model_step.h"
#include "lockstep/train/straggler.h"
#include "lockstep/train/strategy_impl.h"

namespace lockstep {

enum class LoadPurpose { Values, Resume };

struct ModelImpl : VariableOwner, std::enable_shared_from_this<ModelImpl> {
  explicit ModelImpl(std::shared_ptr<Network> given) : network(std::move(given)) {}

  std::shared_ptr<Network> network;
  bool compiled = false;
  CompileOptions options;
  Metric loss_mean = LossMean("loss");
  std::shared_ptr<Session> current;  // created when something first needs memory
  StepCache steps;
  Accumulators accumulators;                   // of training steps with micro-batches
  std::optional<std::int64_t> micro_batch;     // with accumulate = 0: the samples that fit
  std::optional<Balancer> balancer;            // if pieces are sized by the replicas' speed
  std::int64_t most_rows = 0;                  // that fit in an evaluation step; 0: no limit
  int number = 0;                              // among the models that fit has trained; 0: none
  std::vector<ValueType> built_for;            // batch of 1
  bool stopping = false;                       // a callback asked fit to end
  bool stopped_in_epoch = false;               // fit ends before the epoch's steps are done
  std::function<Progress()> progress;          // while fit runs
  std::function<Attribution()> attribution;    // while fit runs
  std::function<double()> attributed_seconds;  // that it divides; the same
  std::function<std::vector<Attribution>()> replica_attribution;  // of each replica here; the same
  std::function<std::optional<NoiseScale>()> noise_scale;         // while fit runs
  const StragglerWatch* stragglers = nullptr;                     // while fit runs
  // The snapshot that was written last, or is being written: its memory is used for the next one.
  std::shared_ptr<Snapshot> last_snapshot;
  CheckpointWriter writer;
  std::function<void(std::string_view)> on_write_stage;  // for tests: CheckpointPlace::on_stage

  Session& session();
  std::shared_ptr<Session> new_session() const;
  // Moves the model's values to another session.
  void move_to(std::shared_ptr<Session> session);
  StepRecipe recipe();
  bool scales_loss() const { return !options.optimizer.loss_scale_variables().empty(); }
  // Steps skipped so far because gradients overflowed.
  std::int64_t skipped_steps();
  // What to compile and feed for a batch. Builds the model if needed; UsageError if the mode needs
  // a compiled one.
  StepRequest request_for(StepMode mode, const Batch& batch, const char* caller);
  // `missing`: StepCache::get. MemoryError, with what would fit instead, where a training step does
  // not.
  CompiledStep& step_for(const StepRequest& request, std::optional<bool> missing = {});
  // The first rank's plan for a global batch.
  const Plan& plan_of(ModelStep step);
  // How a batch is split between the ranks of the world.
  std::vector<Piece> pieces_of(StepMode mode, const Batch& batch);
  // Chooses the options that make training on these pieces fit, where compile asked for that and it
  // is not done yet. Collective.
  void fit_into_memory(const ModelStep& step, std::span<const Piece> pieces);
  // Into how many micro-batches training divides these pieces. Collective.
  std::int64_t accumulate_for(const ModelStep& step, std::span<const Piece> pieces,
                              const char* caller);
  void expect_compiled(const char* caller) const;
  void build(std::span<const ValueType> inputs);
  // Marks the variables as this model's, so that functions find their session.
  void own_variables();
  // Whether gradients are rounded on their way to other ranks.
  bool rounds_gradients();
  // Builds the model if the input shapes are known without data; otherwise UsageError.
  void expect_built(const char* caller);
  void build_if_known();

  std::vector<Metric> metrics() const;  // the loss first
  std::vector<VariableRef> metric_variables() const;
  void reset_metrics();
  std::vector<Tensor> metric_state();
  void set_metric_state(std::span<const Tensor> state);
  Logs read_metrics();

  // What rounding gradients to 16 bits has lost (saved_errors.cpp). Collective.
  //
  // Adds every rank's errors to a checkpoint's contents.
  void write_errors(TensorFile& contents);
  // Gives every rank its errors; on another number of ranks, the first one gets their sum. Zeros if
  // the contents have none. DataError if they are not those of the model.
  void read_errors(const TensorFile& contents, const std::filesystem::path& file);
  // The sums of another session.
  void take_errors(Session& before);
  void reset_errors();

  // Creates the optimizer's slots if no training step has been traced yet.
  void make_slots();
  NamedVariables checkpoint_variables(bool with_metrics);
  TensorFile gather(const NamedVariables& variables, const char* kind);
  Metadata metadata_of(const char* kind);
  // Writes a checkpoint, or only the weights. Collective, as finish_writing.
  struct SaveOptions {
    bool weights_only = false;
    bool asynchronous = false;  // returns when the state is copied; the writer writes it
    Writers writers = Writers::Chief;
  };
  void save(const CheckpointPlace& place, const SaveOptions& options);
  // A copy of the state after the last step; of this worker's part, if all write. `spare`: images
  // whose memory may be used again.
  Snapshot take_snapshot(const SaveOptions& options, std::vector<VariableImage> spare);
  // Waits for the write in flight. An error of it on any worker is thrown on all.
  void finish_writing();
  // Checks the whole file before it sets anything. Returns the progress if the file was written
  // inside fit. To resume, it must have been written inside fit with the same seed as the model's,
  // and `accept` may throw to reject it.
  std::optional<Progress> load(const std::filesystem::path& file, LoadPurpose purpose,
                               const std::function<void(const Progress&)>& accept = {});
  // The same for contents that are already in memory; `file` names them in messages.
  std::optional<Progress> apply(const TensorFile& contents, const std::filesystem::path& file,
                                LoadPurpose purpose,
                                const std::function<void(const Progress&)>& accept = {});
};

ModelImpl& impl_of(const Model& model);
// Whether this worker is the one that writes files and shows progress.
bool is_chief(const Model& model);
Model model_of(std::shared_ptr<ModelImpl> impl);

// The sample weights of a batch multiplied by the class weights.
Tensor weights_of(const Batch& batch, const std::map<std::int64_t, double>& class_weight);

// The data set for fit and evaluate on tensors: one sample (x…, y[, weight]) per element.
Dataset samples_of(const std::vector<Tensor>& x, const Tensor& y, const Tensor& sample_weight,
                   const char* caller);

// UsageError for what cannot be.
MemoryOptions memory_options(const CompileOptions& options);

}  // namespace lockstep
