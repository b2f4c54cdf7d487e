#include "lockstep/cli/step_run.h"

#include "lockstep/base/random.h"
#include "lockstep/passes/precision.h"
#include "lockstep/train/step_memory.h"
#include "lockstep/train/strategy_impl.h"

namespace lockstep::cli {
namespace {

Shape batch_shape(const Task& task, std::int64_t size) {
  std::vector<std::int64_t> dims(task.sample.dims().begin(), task.sample.dims().end());
  dims.insert(dims.begin(), size);
  return Shape(std::move(dims));
}

// Noise, and labels from all classes.
Batch synthetic_batch(const Task& task, std::int64_t size, std::uint64_t seed) {
  Batch batch;
  batch.inputs.emplace_back(DType::F32, batch_shape(task, size));
  // Uniform with standard deviation 1: as good as normal here, and ten times as fast to draw.
  RandomSequence random(seed, 1);
  for (float& value : batch.inputs[0].values<float>()) value = (random.uniform() - 0.5f) * 3.464f;
  batch.labels = Tensor(DType::I32, Shape{size});
  for (std::int32_t& label : batch.labels.values<std::int32_t>()) {
    label = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(task.classes)));
  }
  return batch;
}

}  // namespace

ZooStep::ZooStep(const StepRunOptions& options)
    : task_(options.task.value_or(zoo_entry(options.model).task)),
      loss_(SparseCategoricalCrossentropy({.from_logits = true})),
      loss_mean_(LossMean("loss")),
      seed_(options.seed),
      precision_(precision_by_name("--precision", options.precision)),
      memory_(options.memory) {
  const ZooEntry& entry = zoo_entry(options.model);
  network_ = entry.make(task_);
  optimizer_ = choose_optimizer(entry, options.optimizer, options.learning_rate);
  if (precision_ == DType::F16 || memory_.gradients == DType::F16) {
    optimizer_ = optimizer_.with_loss_scale();
  }
}

StepRecipe ZooStep::recipe() const {
  return {.network = *network_,
          .loss = loss_,
          .optimizer = optimizer_,
          .loss_mean = loss_mean_,
          .metrics = {},
          .weighted_metrics = {},
          .seed = seed_,
          .precision = precision_,
          .memory = memory_,
          .accumulators = &accumulators_};
}

ModelStep ZooStep::types(std::int64_t samples) const {
  return {.mode = StepMode::Train,
          .inputs = {{DType::F32, batch_shape(task_, samples)}},
          .labels = {DType::I32, Shape{samples}}};
}

StepRequest ZooStep::request(Session& session, std::int64_t samples) const {
  const World& world = session.world();
  const std::vector<Piece> pieces = split_evenly(samples, world.size());
  std::int64_t accumulate = memory_.accumulate;
  if (accumulate == 0) {
    accumulate =
        micro_batches_of(pieces, largest_micro_batch(session, recipe(), types(samples), pieces,
                                                     {.caller = "accumulate auto"}));
  }
  return request_step(world, optimizer_, types(samples), pieces, accumulate);
}

StepPlans plan_step(const Strategy& strategy, const StepRunOptions& options) {
  const ZooStep step(options);
  Session session({.world = impl_of(strategy).world, .seed = options.seed});
  return plan_step(session, step.recipe(),
                   step.request(session, options.batch * session.world().size()));
}

double StepRun::flops() const {
  double flops = 0;
  for (const Plan* plan : step_->plans()) flops += plan->total_cost().flops;
  return flops;
}

StepRun::StepRun(const Strategy& strategy, const StepRunOptions& options)
    : session_({.world = impl_of(strategy).world, .seed = options.seed}), model_(options) {
  const std::int64_t samples = options.batch * session_.world().size();
  const Batch batch = synthetic_batch(model_.task(), samples, options.seed);
  step_ = &compile_step(cache_, session_, model_.recipe(), model_.request(session_, samples));
  run_step(*step_, session_, batch);
  step_->wait();
}

void StepRun::run() {
  session_.world().set_step(session_.step);  // other workers see that it gets on
  step_->run_again(session_);
  ++session_.step;
}

}  // namespace lockstep::cli
