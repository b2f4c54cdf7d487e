// One training step of a model by name, outside fit: what `plan` prints and `bench` times.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/cli/zoo.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/metric.h"
#include "lockstep/train/session.h"
#include "lockstep/train/step.h"
#include "lockstep/train/strategy.h"

namespace lockstep::cli {

struct StepRunOptions {
  std::string model = "mlp";
  std::int64_t batch = 32;
  std::string optimizer = "";  // empty: what suits the model
  std::optional<double> learning_rate = {};
  std::uint64_t seed = 0;
  std::string precision = "float32";
};

class StepRun {
 public:
  // Traces, plans, makes the executors and runs a first step; synthetic samples, `batch` for each
  // replica, then lie in their inputs.
  StepRun(const Strategy& strategy, const StepRunOptions& options);

  void run();
  // Until all that was run is over.
  void wait() { step_->wait(); }
  const Plan& plan() const { return step_->plan(); }
  std::size_t peak_bytes() const { return step_->peak_bytes(); }
  // Of each step of the first replica's plan; the model is worth nothing afterwards.
  std::vector<double> profile() { return step_->replicas.front()->executor().profile(); }
  Session& session() { return session_; }
  double loss() const { return step_->loss_sum() / step_->weight(); }

 private:
  Session session_;
  std::shared_ptr<Network> network_;
  Loss loss_;
  Metric loss_mean_;
  Optimizer optimizer_;
  StepCache cache_;
  Step* step_ = nullptr;
};

}  // namespace lockstep::cli
