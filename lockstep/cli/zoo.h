// The models that the program knows by name, and their training defaults.
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
  Task task;  // the default, which benchmarks use; data sets have their own
  std::int64_t batch = 32;
  std::shared_ptr<Network> (*make)(const Task& task) = nullptr;
};

// UsageError, listing the names, if there is no such model.
const ZooEntry& zoo_entry(const std::string& name);
std::string zoo_names();  // "mlp, lenet, …"

// From --optimizer and --learning-rate. The defaults are Adam, and SGD with momentum for ResNets.
Optimizer choose_optimizer(const ZooEntry& entry, const std::string& name,
                           std::optional<Schedule> learning_rate,
                           std::optional<double> weight_decay = {});

}  // namespace lockstep::cli
