#include "lockstep/cli/train_options.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>

#include "lockstep/base/error.h"
#include "lockstep/cli/augment.h"
#include "lockstep/cli/number.h"
#include "lockstep/cli/recipe.h"
#include "lockstep/cli/zoo.h"

namespace lockstep::cli {
namespace {

constexpr std::int64_t kMostKept = 1'000'000;

constexpr std::array kPlacementFlags = {"--devices", "--cores", "--replicas", "--strategy"};

template <class T>
Json as_json(const T& value) {
  return value;
}
Json as_json(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

template <class T>
void from_json(const Json& json, T& value) {
  value = json.get<T>();
}
void from_json(const Json& json, std::optional<double>& value) {
  value = json.is_null() ? std::nullopt : std::optional(json.get<double>());
}

// `members` lead from TrainOptions to the value.
template <class... Members>
Setting setting(std::string flag, OnResume rule, Members... members) {
  return {.flag = std::move(flag),
          .rule = rule,
          .read = [=](const TrainOptions& options) { return as_json((options.*....*members)); },
          .write = [=](TrainOptions& options,
                       const Json& json) { from_json(json, (options.*....*members)); }};
}

std::vector<Setting> make_settings() {
  using enum OnResume;
  using Options = TrainOptions;
  return {
      setting("--model", MustAgree, &Options::model),
      setting("--data", MayChange, &Options::data),
      setting("--seed", MustAgree, &Options::seed),
      setting("--optimizer", MustAgree, &Options::optimizer),
      setting("--learning-rate", MayChange, &Options::learning_rate),
      setting("--learning-rate-scaling", MustAgree, &Options::scaling),
      setting("--scaled-for", MustAgree, &Options::scaled_for),
      setting("--warm-up-epochs", MayChange, &Options::warm_up_epochs),
      setting("--schedule", MayChange, &Options::schedule),
      setting("--weight-decay", MayChange, &Options::weight_decay),
      setting("--image-size", MustAgree, &Options::image_size),
      setting("--augment", MayChange, &Options::augment),
      setting("--monitor", MayChange, &Options::monitor),
      setting("--save-best", MayChange, &Options::save_best),
      setting("--early-stopping", MayChange, &Options::early_stopping),
      setting("--checkpoint-every", MayChange, &Options::checkpoint_every),
      setting("--copy-every", MayChange, &Options::copy_every),
      setting("--keep", MayChange, &Options::keep),
      setting("--checkpoint-writers", MayChange, &Options::checkpoint_writers),
      setting("--on-nan", MayChange, &Options::on_nan),
      setting("--noise-scale", MayChange, &Options::noise_scale),
      setting("--epochs", MayChange, &Options::epochs),
      setting("--steps", MayChange, &Options::steps),
      setting("--global-batch", MayChange, &Options::batch, &BatchFlags::global),
      setting("--precision", MayChange, &Options::placement, &Placement::precision),
      setting("--devices", MayChange, &Options::placement, &Placement::devices),
      setting("--cores", MayChange, &Options::placement, &Placement::cores),
      setting("--replicas", MayChange, &Options::placement, &Placement::replicas),
      setting("--strategy", MayChange, &Options::placement, &Placement::strategy),
      setting("--balance", MayChange, &Options::placement, &Placement::balance),
      setting("--no-tf32", MayChange, &Options::placement, &Placement::no_tf32),
      setting("--accumulate", MayChange, &Options::memory, &MemoryFlags::accumulate),
      setting("--recompute", MayChange, &Options::memory, &MemoryFlags::recompute),
      setting("--shard", MayChange, &Options::memory, &MemoryFlags::shard),
      setting("--gather-budget", MayChange, &Options::memory, &MemoryFlags::gather_budget),
      setting("--offload", MayChange, &Options::memory, &MemoryFlags::offload),
      setting("--gradient-dtype", MayChange, &Options::memory, &MemoryFlags::gradient_dtype),
  };
}

// "3", "sgd", "[]"
std::string shown(const Json& value) {
  if (value.is_null()) return "none";
  if (!value.is_string()) return value.dump();
  const auto text = value.get<std::string>();
  return text.empty() ? "the default" : text;
}

// Values from a record get the same range checks as typed ones.
void expect_sane(const TrainOptions& options, const std::string& run) {
  const auto expect = [&](const char* what, double value, double low, double high) {
    if (low <= value && value <= high) return;
    fail<DataError>("{}: in the run's record, {} cannot be {:g}", run, what, value);
  };
  expect("epochs", static_cast<double>(options.epochs), 0, kMostEpochs);
  expect("steps", static_cast<double>(options.steps), 0, kMostStepsOfAnEpoch);
  expect("global_batch", static_cast<double>(options.batch.global), 0,
         kMostSamples * kMostReplicas);
  expect("copy_every", static_cast<double>(options.copy_every), 0, kMostStepsOfAnEpoch);
  expect("keep", static_cast<double>(options.keep), 0, kMostKept);
  expect("cores", options.placement.cores, 0, kMostCores);
  expect("scaled_for", options.scaled_for, 0, kMostReplicas);
  expect("learning_rate", options.learning_rate.value_or(0), 0, kMostRate);
  for (const int replicas : options.placement.replicas) {
    expect("replicas", replicas, 1, kMostReplicas);
  }
}

}  // namespace

std::string Setting::key() const {
  std::string key = flag.substr(2);
  std::ranges::replace(key, '-', '_');
  return key;
}

const std::vector<Setting>& train_settings() {
  static const std::vector<Setting> settings = make_settings();
  return settings;
}

Json settings_json(const TrainOptions& options) {
  Json json = Json::object();
  for (const Setting& each : train_settings()) json[each.key()] = each.read(options);
  return json;
}

TrainOptions resumed_options(const Json& recorded, const TrainOptions& typed,
                             const GivenFlags& given, const std::string& run) {
  TrainOptions options = typed;
  const auto is_given = [&](const std::string& flag) { return given.contains(flag); };
  // The placement is one decision: a typed --replicas does not combine with recorded --devices.
  const bool placed = std::ranges::any_of(kPlacementFlags, is_given);
  const bool batch = is_given("--global-batch") || is_given("--batch-per-replica");
  for (const Setting& each : train_settings()) {
    const auto value = recorded.find(each.key());
    if (value == recorded.end()) {
      // A flag that did not exist when the run was started has its default.
      if (each.rule == OnResume::MayChange) continue;
      fail<DataError>("{}: the run's record lacks {}", run, each.key());
    }
    const bool of_placement = std::ranges::count(kPlacementFlags, each.flag) > 0;
    const bool takes_typed = of_placement                    ? placed
                             : each.flag == "--global-batch" ? batch
                                                             : is_given(each.flag);
    if (takes_typed) {
      const Json wanted = each.read(typed);
      require(each.rule == OnResume::MayChange || wanted == *value,
              "{} {} contradicts the run in {}, which has {}: omit the flag, or start a new run "
              "without --resume",
              each.flag, shown(wanted), run, shown(*value));
      continue;
    }
    try {
      each.write(options, *value);
    } catch (const nlohmann::json::exception&) {
      fail<DataError>("{}: in the run's record, {} cannot be {}", run, each.key(), value->dump());
    }
  }
  expect_sane(options, run);
  return options;
}

void add_train_flags(Command app,
                     const std::function<void(const TrainOptions&, const GivenFlags&)>& run) {
  auto options = std::make_shared<TrainOptions>();
  app.add_option("--model", options->model, "one of " + zoo_names()).capture_default_str();
  app.add_option("--data", options->data,
                 "a folder of IDX files, a binary CIFAR set, TFRecord files, or one folder of "
                 "images per class; or synthetic (Fashion-MNIST from Debian's package)");
  add_placement(app, options->placement);
  add_memory(app, options->memory);
  app.add_option("--fit", options->fit,
                 "auto: chooses what of these makes the training step fit into memory; or into so "
                 "many bytes (16GiB)");
  add_batch(app, options->batch);
  app.add_option("--on-nan", options->on_nan,
                 "if the loss is not finite: stop, restore (return to the last good state and "
                 "continue with half the rate), or continue")
      .capture_default_str()
      .check(one_of({"stop", "restore", "continue"}));
  app.add_option("--noise-scale", options->noise_scale,
                 "measures the gradient noise scale: auto (as often as costs 1% of the time), off, "
                 "or in every so many steps")
      .capture_default_str();
  app.add_option("--epochs", options->epochs,
                 fmt::format("number of the last epoch ({}; 1 with --steps)", kEpochs))
      .check(whole_number(1, kMostEpochs));
  app.add_option("--steps", options->steps, "steps per epoch (a whole pass over the data)")
      .check(whole_number(1, kMostStepsOfAnEpoch));
  app.add_option("--optimizer", options->optimizer, "sgd, adam, … (depends on the model)");
  app.add_option("--learning-rate", options->learning_rate, "peak rate (depends on the optimizer)")
      .check(number(0, kMostRate));
  app.add_option("--learning-rate-scaling", options->scaling,
                 "scaling of the rate with the number of replicas: none, linear or sqrt")
      .capture_default_str();
  app.add_option("--warm-up-epochs", options->warm_up_epochs,
                 "epochs until the peak rate is reached (5 if it is scaled, and for ResNets)")
      .check(number(0, kMostEpochs));
  app.add_option("--schedule", options->schedule,
                 "learning rate schedule: " + schedule_names() + " (depends on the model)");
  app.add_option("--weight-decay", options->weight_decay,
                 "decoupled weight decay, except on norms and biases (depends on the model)")
      .check(number(0, kMostRate));
  app.add_option("--image-size", options->image_size,
                 "resize pictures in files to this size: 224, or 240x320 (height x width)");
  app.add_option(
      "--augment", options->augment,
      "augmentation of training samples: " + augment_names() + " (crop for pictures in files)");
  app.add_option("--monitor", options->monitor,
                 "the metric that --save-best and --early-stopping watch")
      .capture_default_str();
  app.add_flag("--save-best", options->save_best, "also save the best epoch, as best.safetensors");
  app.add_option("--early-stopping", options->early_stopping,
                 "stop after this many epochs without improvement")
      .check(whole_number(1, kMostEpochs));
  app.add_option("--checkpoint-every", options->checkpoint_every,
                 "also save within an epoch: every 500 steps (500) or 10 minutes (10m)");
  app.add_option("--copy-every", options->copy_every,
                 "of workers that go on after a failure: steps between two copies of the state, "
                 "which each keeps in its memory (as often as costs 1% of the time)")
      .check(whole_number(1, kMostStepsOfAnEpoch));
  app.add_option("--keep", options->keep,
                 "keep this many of the newest checkpoints, as checkpoint-<step>.safetensors")
      .check(whole_number(1, kMostKept));
  app.add_option("--checkpoint-writers", options->checkpoint_writers,
                 "of several workers: chief writes whole checkpoints; all write a part each, to a "
                 "folder that they share")
      .check(one_of({"chief", "all"}))
      .capture_default_str();
  app.add_option("--seed", options->seed, "seed of weights, shuffling and dropout")
      .capture_default_str()
      .check(seed_number());
  app.add_option("--run-dir", options->run_dir, "folder of the run (runs/<date and time>)");
  app.add_option("--resume", options->resume,
                 "continue the run in this folder, with its model, data and options");
  app.add_option("--metrics", options->metrics,
                 "serve metrics for Prometheus at this port of 127.0.0.1 (0: any), or at an "
                 "address: 0.0.0.0:9100");
  app.add_option("--tensorboard", options->tensorboard,
                 "write losses, metrics, where the time went and the noise scale of every epoch as "
                 "TensorBoard's event files to this folder");
  app.add_option("--trace", options->trace, "write the last steps as a trace for Perfetto");
  app.add_option("--json", options->json, "write the result to this file (-: standard output)");
  app.callback([app, options, run] { run(*options, app.given()); });
}

void set_checkpoint_interval(ModelCheckpointOptions& checkpoint, const std::string& text) {
  if (text.empty()) return;
  std::int64_t count = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, count);
  const std::string unit(error == std::errc() ? stop : end, end);
  const std::int64_t seconds = unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : 0;
  constexpr std::int64_t kMost = 1'000'000'000;
  require(error == std::errc() && count > 0 && count <= kMost && (unit.empty() || seconds > 0),
          "--checkpoint-every {}: give a number of steps (500), or a time (90s, 10m, 2h)", text);
  if (unit.empty()) {
    checkpoint.every_steps = count;
  } else {
    checkpoint.every = std::chrono::seconds(count * seconds);
  }
}

std::optional<std::int64_t> noise_scale_every(const std::string& text) {
  if (text == "auto") return std::nullopt;
  if (text == "off") return 0;
  std::int64_t steps = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, steps);
  require(error == std::errc() && stop == end && steps > 0 && steps <= kMostStepsOfAnEpoch,
          "--noise-scale {}: give auto, off, or a number of steps from 1 to {}",
          text.empty() ? "''" : text, kMostStepsOfAnEpoch);
  return steps;
}

}  // namespace lockstep::cli
