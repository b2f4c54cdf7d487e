// lockstep train: trains a named model on a folder of data.
#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/cli/command.h"
#include "lockstep/cli/data_source.h"
#include "lockstep/cli/follow.h"
#include "lockstep/cli/format.h"
#include "lockstep/cli/interrupt.h"
#include "lockstep/cli/memory_fit.h"
#include "lockstep/cli/number.h"
#include "lockstep/cli/recipe.h"
#include "lockstep/cli/run_folder.h"
#include "lockstep/cli/run_publisher.h"
#include "lockstep/cli/run_record.h"
#include "lockstep/cli/train_options.h"
#include "lockstep/cli/train_profile.h"
#include "lockstep/cli/train_result.h"
#include "lockstep/cli/zoo.h"
#include "lockstep/device/cuda/cuda_device.h"
#include "lockstep/distribute/pieces.h"
#include "lockstep/profile/trace.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/model.h"
#include "lockstep/train/strategy_impl.h"

namespace lockstep::cli {
namespace {

using Options = TrainOptions;

// Synthetic data has this many batches.
constexpr std::int64_t kSyntheticBatches = 16;

Recipe recipe_of(const Options& options, std::int64_t samples) {
  const std::int64_t batch = options.batch.global;
  return make_recipe(
      zoo_entry(options.model),
      {.optimizer = options.optimizer,
       .learning_rate = options.learning_rate,
       .schedule = options.schedule,
       .weight_decay = options.weight_decay,
       .scaling = options.scaling,
       .warm_up_epochs = options.warm_up_epochs,
       .replicas = options.scaled_for,
       .global_batch = batch,
       .steps_per_epoch = options.steps > 0 ? options.steps : (samples + batch - 1) / batch,
       .epochs = options.epochs});
}

// "2 cores", "NVIDIA H200"
std::string what_it_is(const Device& device) {
  const auto* cpu = dynamic_cast<const CpuDevice*>(&device);
  if (cpu == nullptr) return gpu_of(device).model;
  return fmt::format("{} core{}", cpu->cores().size(), cpu->cores().size() == 1 ? "" : "s");
}

// "global batch 128 = 2 replicas × 64; cpu:0 (1 core), cpu:1 (1 core)"
std::string placement_text(const Strategy& strategy, std::int64_t batch) {
  const World& world = *impl_of(strategy).world;
  std::string where;
  if (world.workers() > 1) {
    where = fmt::format("{} workers over {}; worker 0: ", world.workers(), world.transport());
  }
  for (int r = 0; r < world.local_size(); ++r) {
    const Device& device = world.device(r);
    where += fmt::format("{}{} ({})", r > 0 ? ", " : "", device.name(), what_it_is(device));
  }
  if (world.size() == 1) return fmt::format("batch {}, {}\n", batch, where);
  const std::vector<Piece> pieces = split_evenly(batch, world.size());
  std::string each = std::to_string(pieces.front().size());
  if (pieces.back().size() != pieces.front().size()) {
    for (std::size_t r = 1; r < pieces.size(); ++r) each += fmt::format(", {}", pieces[r].size());
  }
  return fmt::format("global batch {} = {} replicas × {}; {}\n", batch, world.size(), each, where);
}

OnNaN on_nan_by_name(const std::string& name) {
  if (name == "continue") return OnNaN::Continue;
  return name == "restore" ? OnNaN::Restore : OnNaN::Stop;
}

// Escapes braces, which ModelCheckpoint would take for placeholders.
std::string escape_braces(const std::string& path) {
  std::string escaped;
  for (const char c : path) {
    escaped += c;
    if (c == '{' || c == '}') escaped += c;
  }
  return escaped;
}

// Replaces defaults by their values, so that the run's record does not depend on the defaults of
// this version.
void resolve_defaults(Options& options, const ZooEntry& entry, int replicas, int own_replicas) {
  options.batch = {.per_replica = 0, .global = global_batch(options.batch, replicas, entry.batch)};
  // One of several workers has as many as its host has devices for it, wherever it is resumed.
  const bool several = is_one_of_several(options.placement);
  if (!several) options.placement.replicas = {own_replicas};
  if (options.scaled_for == 0) options.scaled_for = replicas;
  if (options.epochs == 0) options.epochs = options.steps > 0 ? 1 : kEpochs;
  if (!options.data.empty() && options.data != "synthetic") {
    options.data = std::filesystem::absolute(options.data).lexically_normal().string();
  }
}

// Opens the training data; a resumed run must get the same samples as before.
DataSource open_data_of(const DataOptions& options, bool given, const RunFolder& folder,
                        const std::optional<Json>& before, Json& identity) {
  const std::string run = folder.source().string();
  const bool moved = before && !given && !options.data.empty() && options.data != "synthetic" &&
                     !std::filesystem::is_directory(options.data);
  require(!moved,
          "--resume {}: the data was in {}, which no longer exists: give its new location with "
          "--data",
          run, options.data);
  DataSource data = open_data(options);
  identity = data_json(data, options);
  if (!before) return data;
  const Json recorded = record_part(*before, "data", folder.source_record());
  const auto shown = [](const Json& of) {
    // A path may hold bytes that are not UTF-8.
    const auto part = [&](const char* key) {
      return of.value(key, Json("?")).dump(-1, ' ', false, Json::error_handler_t::replace);
    };
    return fmt::format("{} with {} + {} samples, fingerprint {}", part("path"),
                       part("train_samples"), part("test_samples"), part("fingerprint"));
  };
  for (const char* key : {"kind", "fingerprint", "train_samples", "test_samples", "classes"}) {
    if (recorded.value(key, Json()) == identity[key]) continue;
    fail<UsageError>(
        "--resume {}: the run was trained on other data ({}) than {} ({}): {}, or "
        "start a new run without --resume",
        run, shown(recorded), given ? "--data names" : "there is now", shown(identity),
        given ? "omit --data" : "put the old data back");
  }
  return data;
}

std::int64_t recorded_samples(const Json& record, const std::filesystem::path& file) {
  const Json data = record_part(record, "data", file);
  const Json& samples = record_part(data, "train_samples", file);
  constexpr std::int64_t kMost = kSyntheticBatches * kMostSamples * kMostReplicas;
  if (!samples.is_number_integer() || samples < 1 || samples > kMost) {
    fail<DataError>("{}: there cannot be {} samples", file.string(), samples.dump());
  }
  return samples;
}

// The signal that stopped the workers: that of the first one that got any.
int agreed_signal(World& world, int own) {
  for (const std::string& theirs : world.exchange(std::to_string(own))) {
    if (theirs != "0") return std::stoi(theirs);
  }
  return own;
}

// One call of `lockstep train`.
class TrainRun {
 public:
  TrainRun(const Options& typed, const GivenFlags& given);
  void run();

 private:
  void open_model();
  // With several workers: the chief makes the folder, and all know where it is.
  void share_folder();
  void begin();
  void go_on();
  void show_if_chief();
  std::vector<CallbackRef> callbacks();
  Ending ending_of(const History& history) const;
  void finish(const History& history, const Ending& ending);
  void save_tuning();
  World& world() const { return *impl_of(*strategy_).world; }

  Options options_;
  const GivenFlags& given_;
  std::optional<RunFolder> made_folder_;
  RunFolder& folder_;
  std::optional<Json> before_;  // the record of the run that is resumed
  bool chief_ = true;           // another worker may become it
  bool begun_ = false;          // this process or, before it came, another one has begun the run
  std::ostream out_{nullptr};   // what only the chief shows
  std::int64_t batch_ = 0;
  Json identity_;  // of the data
  DataSource data_;
  std::optional<Strategy> strategy_;
  std::optional<Model> model_;
  Recipe recipe_;
  std::optional<Dataset> batches_;
  std::optional<RunRecorder> recorder_;
  std::optional<RunPublisher> publisher_;
};

TrainRun::TrainRun(const Options& typed, const GivenFlags& given)
    : options_(typed),
      given_(given),
      made_folder_(is_one_of_several(typed.placement) ? RunFolder::of_chief(typed.resume)
                                                      : RunFolder(typed.run_dir, typed.resume)),
      folder_(*made_folder_),
      chief_(is_chief(typed.placement)) {
  show_if_chief();
  if (!folder_.resumes()) return;
  before_ = read_record(folder_.source_record());
  if (before_) {
    options_ = resumed_options(record_part(*before_, "options", folder_.source_record()), typed,
                               given, folder_.source().string());
  }
}

// If the JSON goes to standard output, text for people goes to standard error.
void TrainRun::show_if_chief() {
  std::ostream& target = is_standard_output(options_.json) ? std::cerr : std::cout;
  out_.rdbuf(chief_ ? target.rdbuf() : nullptr);
}

void TrainRun::share_folder() {
  begun_ = world().newcomer();
  if (!begun_) {
    world().on_chief([this] {
      made_folder_.emplace(options_.run_dir, options_.resume);
      folder_.create();
    });
    const bool chief = world().chief();
    world().agree_on_note(chief ? std::filesystem::absolute(folder_.path()).string() : "");
  }
  if (begun_ || !world().chief()) folder_.follow(world().note());
}

void TrainRun::open_model() {
  const int own_replicas = one_count(options_.placement);
  const ZooEntry& entry = zoo_entry(options_.model);
  const bool several = is_one_of_several(options_.placement);
  if (several) {
    strategy_ = make_strategy(options_.placement, own_replicas, own_replicas);
    share_folder();
  }
  const int replicas = several ? strategy_->num_replicas_in_sync() : own_replicas;
  resolve_defaults(options_, entry, replicas, own_replicas);
  batch_ = options_.batch.global;
  DataOptions how{.data = options_.data,
                  .task = entry.task,
                  .samples = batch_ * kSyntheticBatches,
                  .seed = options_.seed};
  if (!options_.image_size.empty()) how.image_size = image_size_by_text(options_.image_size);
  if (!options_.augment.empty()) how.augment = augment_by_name(options_.augment);
  if (before_) how.samples = recorded_samples(*before_, folder_.source_record());
  data_ = open_data_of(how, given_.contains("--data"), folder_, before_, identity_);
  batches_ = data_.train(batch_, options_.seed);
  if (folder_.resumes()) batches_->tuning()->load(folder_.source_tuning());
  recipe_ = recipe_of(options_, data_.train_samples);
  // Recorded as a number, so that it holds for later versions and other replica counts.
  options_.learning_rate = recipe_.base;
  if (!several) strategy_ = make_strategy(options_.placement, replicas, replicas);
  model_.emplace(entry.make(data_.task));
  const MemoryOptions memory = memory_options(options_.memory);
  model_->compile({.strategy = *strategy_,
                   .optimizer = recipe_.optimizer,
                   .loss = SparseCategoricalCrossentropy({.from_logits = true}),
                   .metrics = {SparseCategoricalAccuracy({.name = "accuracy"})},
                   .precision = options_.placement.precision,
                   .accumulate = memory.accumulate,
                   .recompute = memory.recompute,
                   .shard = memory.shard,
                   .gather_bytes = memory.gather_bytes,
                   .offload = options_.memory.offload,
                   .gradient_dtype = options_.memory.gradient_dtype,
                   .fit_memory = options_.fit,
                   .seed = options_.seed});
  model_->build(data_.task.sample);
  if (!options_.fit.empty()) options_.memory = fitted(*model_, data_.task, batch_);
}

// After the failure of a worker: this process may be the chief now, or a newcomer.
void TrainRun::go_on() {
  const bool new_chief = world().chief() && !recorder_;
  chief_ = world().chief();
  show_if_chief();
  if (new_chief) {
    folder_.take_over();
    recorder_.emplace(folder_.record(), read_record(folder_.record()).value());
    recorder_->begin();
  }
  out_ << fmt::format("training goes on at step {}: {}", model_->step(),
                      placement_text(*strategy_, batch_));
  out_.flush();
}

// Called by fit when all checks have passed.
void TrainRun::begin() {
  // Where the first chief failed before it wrote a record, the run begins now.
  const bool recorded = recorder_ || !world().chief() || std::filesystem::exists(folder_.record());
  if (std::exchange(begun_, true) && recorded) return go_on();
  folder_.keep();
  Json record = before_ ? *before_ : new_record();
  const Json options = settings_json(options_);
  if (before_) {
    note_resumed(record, options);
  } else {
    record["options"] = options;
  }
  record["effective"] = {
      {"optimizer", recipe_.optimizer.name()},
      {"learning_rate", recipe_.rate},
      {"recipe", fmt::format("{} at {:g}{}", recipe_.optimizer.name(), recipe_.rate, recipe_.how)},
      {"strategy", strategy_name(options_.placement, strategy_->num_replicas_in_sync())},
      {"devices", strategy_->devices()},
      {"replicas", strategy_->num_replicas_in_sync()},
      {"global_batch", batch_},
      {"parameters", model_->parameter_count()}};
  record["data"] = identity_;
  if (chief_) {
    recorder_.emplace(folder_.record(), std::move(record));
    recorder_->begin();
  }
  // Loading the checkpoint has set its own rate.
  if (given_.contains("--learning-rate") && folder_.resumes() &&
      recipe_.optimizer.schedule().constant()) {
    model_->set_learning_rate(recipe_.rate);
  }
  if (folder_.resumes() && !before_) {
    out_ << fmt::format(
        "note: {} has no {} (an earlier version wrote it): flags that are not given have their "
        "defaults, and whether model and data are those of the run cannot be checked\n",
        folder_.source().string(), kRecordFile);
  }
  const double rate =
      recipe_.optimizer.schedule().constant() ? model_->learning_rate() : recipe_.rate;
  out_ << fmt::format("{}: {} parameters{}, {} at {:g}{}\n{}{}\n", options_.model,
                      count_text(model_->parameter_count()),
                      precision_text(options_.placement, *strategy_), recipe_.optimizer.name(),
                      rate, recipe_.how, placement_text(*strategy_, batch_), data_.description);
  out_.flush();
}

std::vector<CallbackRef> TrainRun::callbacks() {
  const bool terminal =
      isatty(is_standard_output(options_.json) ? STDERR_FILENO : STDOUT_FILENO) == 1;
  const auto epoch_done = [this](Model& model, std::int64_t epoch, const Logs& logs) {
    if (recorder_) recorder_->epoch_done(epoch, model.step(), logs);
  };
  std::vector<CallbackRef> callbacks = {
      LambdaCallback({.on_train_begin = [this](Model&) { begin(); }}),
      ProgressBar(out_, {.terminal = terminal}),
      CSVLogger({.path = folder_.metrics(), .append = folder_.resumes()}),
      LambdaCallback({.on_epoch_end = epoch_done}),
      publisher_->callback(),
  };
  if (!options_.tensorboard.empty()) {
    callbacks.push_back(TensorBoard({.log_dir = options_.tensorboard}));
  }
  if (options_.early_stopping > 0) {
    callbacks.push_back(
        EarlyStopping({.monitor = options_.monitor, .patience = options_.early_stopping}));
  }
  const Writers writers = options_.checkpoint_writers == "all" ? Writers::All : Writers::Chief;
  if (options_.save_best) {
    callbacks.push_back(ModelCheckpoint({.path = escape_braces(folder_.best().string()),
                                         .monitor = options_.monitor,
                                         .save_best_only = true,
                                         .writers = writers}));
  }
  ModelCheckpointOptions last{.path = escape_braces(folder_.checkpoint().string()),
                              .writers = writers};
  if (options_.keep > 0) {
    last.path = escape_braces((folder_.path() / "checkpoint-").string()) + "{step}.safetensors";
    last.keep = options_.keep;
    last.latest = folder_.checkpoint().string();
  }
  set_checkpoint_interval(last, options_.checkpoint_every);
  callbacks.push_back(ModelCheckpoint(last));
  return callbacks;
}

void TrainRun::run() {
  // Mistakes are told before the data is read.
  noise_scale_every(options_.noise_scale);
  publisher_.emplace(out_, RunPublisherOptions{.model = options_.model,
                                               .metrics = options_.metrics,
                                               .folder = [this] { return folder_.path(); }});
  open_model();
  folder_.create();  // where share_folder did not
  FitOptions fit;
  fit.epochs = options_.epochs;
  if (options_.steps > 0) fit.steps_per_epoch = options_.steps;
  fit.validation_data = data_.test(batch_);
  fit.resume = folder_.resumed();
  fit.on_nan = on_nan_by_name(options_.on_nan);
  fit.copy_state_every = options_.copy_every;
  fit.noise_scale_every = noise_scale_every(options_.noise_scale);
  fit.interrupted = [] { return caught_signal() != 0; };
  fit.verbose = 0;
  fit.callbacks = callbacks();
  Ending ending;
  try {
    const History history = model_->fit(*batches_, fit);
    ending = ending_of(history);
    finish(history, ending);
  } catch (const std::exception& error) {
    if (recorder_) recorder_->end("failed", error.what());
    throw;
  }
  if (ending.signal != 0) throw Interrupted{ending.signal};
}

// A signal that arrives when everything is done interrupts nothing.
Ending TrainRun::ending_of(const History& history) const {
  Ending ending{.signal = history.interrupted ? caught_signal() : 0, .checkpoint = {}};
  if (history.interrupted) ending.signal = agreed_signal(*impl_of(*strategy_).world, ending.signal);
  if (std::filesystem::exists(folder_.checkpoint())) {
    ending.checkpoint = folder_.checkpoint().string();
  }
  return ending;
}

// If this fails, the run has still succeeded: the next one only starts without the hints.
void TrainRun::save_tuning() {
  try {
    batches_->tuning()->save(folder_.tuning());
  } catch (const DataError& error) {
    out_ << fmt::format("warning: {}; a resumed run will tune its input again\n", error.what());
  }
}

void TrainRun::finish(const History& history, const Ending& ending) {
  if (!chief_) {
    if (!history.failure.empty()) fail<Error>("training ended: {}", history.failure);
    return;
  }
  if (!history.failure.empty()) {
    recorder_->end("failed", history.failure);
  } else {
    ending.signal != 0 ? recorder_->end("interrupted", signal_name(ending.signal))
                       : recorder_->end("finished");
  }
  const std::optional<Explanation> explanation =
      save_profile(out_, history, options_, folder_.path());
  report(out_, history,
         {.run = folder_.path().string(),
          .ending = ending,
          .epochs = options_.epochs,
          .explanation = explanation ? &*explanation : nullptr});
  save_tuning();
  out_.flush();  // before writing to a target that may be a pipe and block
  if (!options_.trace.empty()) {
    write_target("--trace", options_.trace, trace_text(model_->recorder()));
  }
  write_json(result_json(options_, *strategy_, batch_, history, ending), options_.json);
  if (history.failure.empty()) return;
  const std::string again =
      ending.checkpoint ? fmt::format(", and continue from the last good state with --resume {}",
                                      folder_.path().string())
                        : std::string();
  fail<Error>("training ended: {}; look for NaN in the data or lower --learning-rate{}",
              history.failure, again);
}

void run(const Options& options, const GivenFlags& given) {
  check_target("--json", options.json);
  check_target("--trace", options.trace);
  if (is_evaluator(options.placement)) return follow_run_of(options);
  catch_signals();
  TrainRun(options, given).run();
}

}  // namespace

void add_train(Program& program) {
  Command app = program.add_command("train", "Trains a model and saves it.");
  add_train_flags(app,
                  [](const Options& options, const GivenFlags& given) { run(options, given); });
}

}  // namespace lockstep::cli
