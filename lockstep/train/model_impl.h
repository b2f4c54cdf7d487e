// What a Model holds. Shared by the files that implement it.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/train/checkpoint.h"
#include "lockstep/train/model.h"
#include "lockstep/train/session.h"
#include "lockstep/train/step.h"

namespace lockstep {

enum class LoadPurpose { Values, Resume };

struct Model::Impl : VariableOwner, std::enable_shared_from_this<Model::Impl> {
  explicit Impl(std::shared_ptr<Network> given) : network(std::move(given)) {}

  std::shared_ptr<Network> network;
  bool compiled = false;
  CompileOptions options;
  Metric loss_mean = LossMean("loss");
  std::shared_ptr<Session> current;  // made when something first needs memory
  StepCache steps;
  std::optional<Balancer> balancer;          // where pieces follow the replicas' speeds
  std::int64_t most_rows = 0;                // of evaluation, where more did not fit; 0: any
  std::vector<ValueType> built_for;          // batch of 1
  bool stopping = false;                     // a callback asked fit to end
  bool stopped_in_epoch = false;             // fit ends before the steps of its epoch are done
  std::function<Progress()> progress;        // while fit runs
  std::function<Attribution()> attribution;  // the same

  Session& session();
  std::shared_ptr<Session> new_session() const;
  // Moves the model's values to another session.
  void move_to(std::shared_ptr<Session> session);
  StepRecipe recipe();
  bool scales_loss() const { return !options.optimizer.loss_scale_variables().empty(); }
  // Steps that a loss scale has skipped so far.
  std::int64_t skipped_steps();
  // The step for a batch; UsageError where the mode needs a compiled model.
  Step& step_for(StepMode mode, const Batch& batch, const char* caller);
  // The plan of the first replica's step for a global batch of this signature.
  const Plan& plan_of(const StepSignature& signature);
  // How a batch is shared out between the replicas.
  std::vector<Piece> pieces_of(StepMode mode, std::int64_t samples);
  void expect_compiled(const char* caller) const;
  void build(std::span<const ValueType> inputs);
  // Says on its variables that they are this model's, so that functions find their memory.
  void own_variables();
  // Where the shapes of the inputs are known without data, it is built at once; UsageError else.
  void expect_built(const char* caller);
  void build_if_known();

  std::vector<Metric> metrics() const;  // the loss first
  std::vector<VariableRef> metric_variables() const;
  void reset_metrics();
  std::vector<Tensor> metric_state();
  void set_metric_state(std::span<const Tensor> state);
  Logs read_metrics();

  // Makes the optimizer's slots where no training step was traced yet.
  void make_slots();
  NamedVariables checkpoint_variables(bool with_metrics);
  TensorFile gather(const NamedVariables& variables, const char* kind);
  // Writes a checkpoint, or the weights alone. Where `keep_good`, a state with values that are not
  // finite goes beside the file (not_finite_name), and what the file holds stays.
  struct SaveOptions {
    bool weights_only = false;
    bool keep_good = false;
  };
  void save(const std::filesystem::path& file, const SaveOptions& options);
  // Checks the whole file before it sets anything. Returns where it was written, if inside fit. To
  // resume, it must have been written inside fit and under the seed that the model has, and
  // `accept` may refuse it.
  std::optional<Progress> load(const std::filesystem::path& file, LoadPurpose purpose,
                               const std::function<void(const Progress&)>& accept = {});
};

// Weights of the samples of a batch under class weights, times those it has.
Tensor weights_of(const Batch& batch, const std::map<std::int64_t, double>& class_weight);

// The data set behind fit and evaluate on tensors: samples (x…, y[, weight]), one an element.
Dataset samples_of(const std::vector<Tensor>& x, const Tensor& y, const Tensor& sample_weight,
                   const char* caller);

}  // namespace lockstep
