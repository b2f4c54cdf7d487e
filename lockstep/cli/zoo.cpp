#include "lockstep/cli/zoo.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/nn/applications/applications.h"

namespace lockstep::cli {
namespace {

// Images up to this size get a stem without stride and pooling.
constexpr std::int64_t kSmallImage = 64;

template <int depth>
std::shared_ptr<Network> resnet(const Task& task) {
  return applications::resnet(
      {.depth = depth,
       .input_shape = task.sample,
       .classes = task.classes,
       .small_input = task.sample.rank() == 3 && task.sample[0] <= kSmallImage,
       .zero_init_residual = true});
}

std::vector<ZooEntry> make_zoo() {
  const Task digits{.sample = {28, 28, 1}, .classes = 10};
  const Task photos{.sample = {224, 224, 3}, .classes = 1000};
  return {
      {"mlp",
       {.sample = {784}, .classes = 10},
       32,
       [](const Task& task) {
         return applications::mlp({.input_shape = task.sample, .classes = task.classes});
       }},
      {"lenet", digits, 64,
       [](const Task& task) {
         return applications::lenet({.input_shape = task.sample, .classes = task.classes});
       }},
      {"resnet18", photos, 16, resnet<18>},
      {"resnet34", photos, 16, resnet<34>},
      {"resnet50", photos, 16, resnet<50>},
      {"resnet101", photos, 16, resnet<101>},
      {"resnet152", photos, 16, resnet<152>},
  };
}

const std::vector<ZooEntry>& zoo() {
  static const std::vector<ZooEntry> entries = make_zoo();
  return entries;
}

}  // namespace

const ZooEntry& zoo_entry(const std::string& name) {
  const auto found = std::find_if(zoo().begin(), zoo().end(),
                                  [&](const ZooEntry& entry) { return entry.name == name; });
  require(found != zoo().end(), "--model {}: there is no such model; use one of {}", name,
          zoo_names());
  return *found;
}

std::string zoo_names() {
  std::string names;
  for (const ZooEntry& entry : zoo()) names += (names.empty() ? "" : ", ") + entry.name;
  return names;
}

Optimizer choose_optimizer(const ZooEntry& entry, const std::string& name,
                           std::optional<Schedule> learning_rate,
                           std::optional<double> weight_decay) {
  if (!name.empty()) return optimizer_by_name(name, learning_rate, weight_decay);
  if (entry.name.starts_with("resnet")) {
    return SGD({.learning_rate = learning_rate.value_or(0.1),
                .momentum = 0.9,
                .weight_decay = weight_decay.value_or(0.0)});
  }
  return Adam(
      {.learning_rate = learning_rate.value_or(1e-3), .weight_decay = weight_decay.value_or(0.0)});
}

}  // namespace lockstep::cli
