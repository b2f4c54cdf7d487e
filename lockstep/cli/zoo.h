// The models that the program knows by name, and how each is trained where nothing else is said.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/shape.h"
#include "lockstep/nn/network.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::cli {

// What a model is made for: samples (without the batch) and the number of classes.
struct Task {
  Shape sample;
  std::int64_t classes = 0;
};

struct ZooEntry {
  std::string name;
  Task task;  // where no data says otherwise: what benchmarks use
  std::int64_t batch = 32;
  std::shared_ptr<Network> (*make)(const Task& task) = nullptr;
};

// UsageError, with the names there are, where there is none of this name.
const ZooEntry& zoo_entry(const std::string& name);
std::string zoo_names();  // "mlp, lenet, …"

// --optimizer and --learning-rate; where they are absent, what suits the model: Adam, and SGD with
// momentum for the ResNets.
Optimizer choose_optimizer(const ZooEntry& entry, const std::string& name,
                           std::optional<Schedule> learning_rate,
                           std::optional<double> weight_decay = {});

}  // namespace lockstep::cli
