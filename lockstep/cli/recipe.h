// The training recipe of a run: optimizer, learning rate schedule and weight decay. Defaults depend
// on the model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/cli/zoo.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::cli {

struct RecipeOptions {
  std::string optimizer = "";                 // --optimizer; empty: depends on the model
  std::optional<double> learning_rate = {};   // --learning-rate: the peak of the schedule
  std::string schedule = "";                  // --schedule; empty: depends on the model
  std::optional<double> weight_decay = {};    // --weight-decay
  std::string scaling = "none";               // --learning-rate-scaling, for `replicas`
  std::optional<double> warm_up_epochs = {};  // --warm-up-epochs
  int replicas = 1;
  std::int64_t global_batch = 1;
  std::int64_t steps_per_epoch = 0;  // 0: unknown
  std::int64_t epochs = 1;
};

struct Recipe {
  Optimizer optimizer;
  double base = 0;  // the peak rate, before it is scaled for replicas
  double rate = 0;  // the peak rate
  // What follows "sgd at 0.1": ", warm-up over the first 500 steps, cosine decay to 0".
  std::string how;
};

std::string schedule_names();  // "constant, cosine, …"

// ResNets get their usual recipe: SGD with momentum 0.9, a rate of 0.1 per 256 samples, a warm-up
// of five epochs (or a tenth of the run, if that is less), cosine decay, weight decay except on
// norms and biases, and residual branches that start at zero (Goyal et al. 2017; He et al., "Bag of
// Tricks", 2019). Other models get Adam at 0.001. UsageError if the flags cannot be followed.
Recipe make_recipe(const ZooEntry& entry, const RecipeOptions& options);

}  // namespace lockstep::cli
