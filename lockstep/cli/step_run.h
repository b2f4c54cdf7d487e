// One training step of a model by name, outside fit: what `plan` prints and `bench` times.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/cli/zoo.h"
#include "lockstep/device/device.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/metric.h"
#include "lockstep/train/session.h"
#include "lockstep/train/step.h"

namespace lockstep::cli {

struct StepRunOptions {
  std::string model = "mlp";
  std::int64_t batch = 32;
  std::string optimizer = "";  // empty: what suits the model
  std::optional<double> learning_rate = {};
  std::uint64_t seed = 0;
};

class StepRun {
 public:
  // Traces, plans and makes the executor; synthetic samples already lie in its inputs.
  StepRun(Device& device, const StepRunOptions& options);

  void run() { step_->run(count_++); }
  const Plan& plan() const { return step_->plan(); }
  Session& session() { return session_; }
  double loss() const { return step_->loss_sum() / step_->weight(); }

 private:
  Session session_;
  std::shared_ptr<Network> network_;
  Loss loss_;
  Metric loss_mean_;
  Optimizer optimizer_;
  std::unique_ptr<Step> step_;
  std::int64_t count_ = 0;
};

}  // namespace lockstep::cli
