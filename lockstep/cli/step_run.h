// One training step of a named model, outside fit: what `plan` prints and `bench` times.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/cli/zoo.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/metric.h"
#include "lockstep/runtime/session.h"
#include "lockstep/train/model_step.h"
#include "lockstep/train/strategy.h"

namespace lockstep::cli {

struct StepRunOptions {
  std::string model = "mlp";
  std::int64_t batch = 32;
  std::string optimizer = "";  // empty: depends on the model
  std::optional<double> learning_rate = {};
  std::uint64_t seed = 0;
  std::string precision = "float32";
  MemoryOptions memory = {};
  std::optional<Task> task = {};  // none: the model's own
};

// The model, and what else a step is traced from.
class ZooStep {
 public:
  explicit ZooStep(const StepRunOptions& options);
  StepRecipe recipe() const;
  // For a global batch of so many samples, divided into as many micro-batches as the options say
  // or, if they leave it open, as few as fit into memory. Collective.
  StepRequest request(Session& session, std::int64_t samples) const;
  const Task& task() const { return task_; }
  // The types of so many samples.
  ModelStep types(std::int64_t samples) const;

 private:
  Task task_;
  std::shared_ptr<Network> network_;
  Loss loss_;
  Metric loss_mean_;
  Optimizer optimizer_;
  std::uint64_t seed_;
  std::optional<DType> precision_;
  MemoryOptions memory_;
  mutable Accumulators accumulators_;
};

// The plans of the step on each replica. Nothing runs, and nothing is allocated.
StepPlans plan_step(const Strategy& strategy, const StepRunOptions& options);

class StepRun {
 public:
  // Traces, plans, creates the executors and runs a first step, which copies `batch` synthetic
  // samples per replica into the executors' inputs.
  StepRun(const Strategy& strategy, const StepRunOptions& options);

  void run();
  // Blocks until all steps are done.
  void wait() { step_->wait(); }
  const Plan& plan() const { return step_->plan(); }
  // Micro-batches of a step, and the operations of one replica in it.
  std::int64_t micro_batches() const { return std::ssize(step_->micro_batches) + 1; }
  double flops() const;
  std::size_t peak_bytes() const { return session_.resident_bytes(); }
  // On a GPU, the milliseconds of each instruction of the first rank's plan, after which the
  // model's values are garbage; empty on CPUs.
  std::vector<double> profile() { return step_->ranks.front()->executor().profile(); }
  Session& session() { return session_; }
  double loss() {
    return step_->sum(session_, kLossSumOutput) / step_->sum(session_, kWeightOutput);
  }

 private:
  Session session_;
  ZooStep model_;
  StepCache cache_;
  CompiledStep* step_ = nullptr;
};

}  // namespace lockstep::cli
