// The recipe of a run: its optimizer, its rate over the steps and its weight decay. What no flag
// says is what suits the model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/cli/zoo.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::cli {

struct RecipeOptions {
  std::string optimizer = "";                 // --optimizer; empty: what suits the model
  std::optional<double> learning_rate = {};   // --learning-rate: the highest one
  std::string schedule = "";                  // --schedule; empty: what suits the model
  std::optional<double> weight_decay = {};    // --weight-decay
  std::string scaling = "none";               // --learning-rate-scaling, for `replicas`
  std::optional<double> warm_up_epochs = {};  // --warm-up-epochs
  int replicas = 1;
  std::int64_t global_batch = 1;
  std::int64_t steps_per_epoch = 0;  // 0: nobody knows
  std::int64_t epochs = 1;
};

struct Recipe {
  Optimizer optimizer;
  double base = 0;  // the highest rate, before it is scaled for replicas
  double rate = 0;  // the highest
  // What follows "sgd at 0.1": ", reached over the first 500 steps, cosine decay to 0".
  std::string how;
};

std::string schedule_names();  // "constant, cosine, …"

// The ResNets are trained as usual for them: SGD with momentum 0.9, a rate of 0.1 for 256 samples
// in a step, reached over a warm-up of five epochs (or a tenth of the run, where that is less) and
// lowered along a cosine, with weight decay on all but norms and biases, and with blocks that start
// as their shortcuts (Goyal et al. 2017; He et al., "Bag of Tricks", 2019). Others get Adam at
// 0.001. UsageError where a flag cannot be followed.
Recipe make_recipe(const ZooEntry& entry, const RecipeOptions& options);

}  // namespace lockstep::cli
