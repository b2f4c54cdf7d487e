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
};

// The model, and what else a step is traced from.
class ZooStep {
 public:
  explicit ZooStep(const StepRunOptions& options);
  StepRecipe recipe() const;
  // For a global batch of so many samples.
  StepRequest request(const World& world, std::int64_t samples) const;
  const Task& task() const { return task_; }

 private:
  Task task_;
  std::shared_ptr<Network> network_;
  Loss loss_;
  Metric loss_mean_;
  Optimizer optimizer_;
  std::uint64_t seed_;
  std::optional<DType> precision_;
};

// The plans of the step, one for each replica. Nothing runs, and nothing is allocated.
std::vector<Plan> plan_step(const Strategy& strategy, const StepRunOptions& options);

class StepRun {
 public:
  // Traces, plans, creates the executors and runs a first step, which copies `batch` synthetic
  // samples per replica into the executors' inputs.
  StepRun(const Strategy& strategy, const StepRunOptions& options);

  void run();
  // Blocks until all steps are done.
  void wait() { step_->wait(); }
  const Plan& plan() const { return step_->plan(); }
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
