// fit: epochs of steps, each epoch saved before its validation, with callbacks around them.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "lockstep/base/error.h"
#include "lockstep/data/pipeline/node.h"
#include "lockstep/train/fit_run.h"
#include "lockstep/train/verbose.h"

namespace lockstep {
namespace {

std::vector<CallbackRef> in_order(std::vector<CallbackRef> callbacks) {
  for (const CallbackRef& callback : callbacks) {
    require(callback != nullptr, "[fit] one of the callbacks is null");
  }
  std::stable_partition(callbacks.begin(), callbacks.end(),
                        [](const auto& each) { return !each->runs_last(); });
  return callbacks;
}

}  // namespace

FitRun::FitRun(Model& model, const WorkerBatches& batches, const FitOptions& options,
               Survival& survival, RunProfiler& profiler)
    : model_(model),
      impl_(impl_of(model)),
      session_(impl_.session()),
      track_(session_.host_track()),
      data_(batches),
      batches_(data_.batches),
      options_(options),
      callbacks_(in_order(with_progress(options.callbacks, options.verbose))),
      survival_(survival),
      profiler_(profiler),
      start_(std::in_place, session_.phases(), Phase::Start),
      samples_of_(static_cast<std::size_t>(session_.local_size()), 0),
      stragglers_(session_.world().workers()),
      in_flight_([this](const CompiledStep& step, const StepInfo& info) { finish(step, info); }),
      noise_(options.noise_scale_every),
      good_(impl_) {}

std::optional<History> FitRun::run() {
  try {
    return run_epochs();
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    const bool goes_on = session_.world().goes_on_after(error);
    if (!goes_on) session_.world().report(error);
    impl_.writer.drain();  // its checkpoint is on disk before the caller hears of the error
    if (goes_on) return std::nullopt;
    throw;
  }
}

History FitRun::run_epochs() {
  build_from_data();
  impl_.stopping = false;
  at_.epoch = options_.initial_epoch;
  at_.pass = static_cast<std::uint64_t>(options_.initial_epoch);
  set_batches();
  switch (survival_.meet()) {
    case Survival::Meeting::Done:
      return survival_.history_of_done_call();
    case Survival::Meeting::GoOn:
      go_on();
      break;
    case Survival::Meeting::BeginFromCopy:
      recovered_ = true;
      survival_.restore_values();
      [[fallthrough]];
    case Survival::Meeting::Begin:
      if (!options_.resume.empty()) resume();
      break;
  }
  impl_.progress = [this] { return progress(); };
  impl_.attribution = [this] { return survival_.meter().read(); };
  impl_.attributed_seconds = [this] { return survival_.meter().seconds(); };
  impl_.replica_attribution = [this] { return survival_.meter().by_replica(); };
  impl_.noise_scale = [this] { return noise_.estimate(); };
  impl_.stragglers = &stragglers_;

  const std::int64_t skipped_before = impl_.skipped_steps();
  scale_ = {.step = session_.step, .skipped = skipped_before};
  const FitInfo known = info();
  for_callbacks([&](Callback& callback) { callback.on_train_begin(model_, known); });
  restore_callbacks();
  profiler_.begin();
  while (at_.epoch < options_.epochs && history_.failure.empty() && !asked_to_stop()) {
    run_epoch(at_.epoch);
  }
  for_callbacks([&](Callback& callback) { callback.on_train_end(model_); });
  impl_.finish_writing();
  close_pass();

  start_.reset();  // in case there was no step
  history_.attribution = survival_.meter().read();
  history_.replicas = times_of_all_ranks();
  history_.seconds = survival_.meter().seconds();
  history_.peak_bytes = session_.resident_bytes();
  history_.balanced = impl_.balancer.has_value();
  history_.slow_workers = stragglers_.all();
  history_.overflowed_steps = impl_.skipped_steps() - skipped_before;
  history_.loss_scale = model_.loss_scale();
  history_.noise_scale = noise_.estimate();
  history_.noise_scale_seconds = noise_.spent_seconds();
  history_.optimizer = impl_.options.optimizer.name();
  history_.top_ops = slowest_ops(session_.track(0), 10);
  history_.profile = std::make_shared<RunProfile>(profiler_.collect(history_));
  survival_.end(progress(), history_);
  return std::move(history_);
}

std::vector<ReplicaTime> FitRun::times_of_all_ranks() const {
  static_assert(std::is_trivially_copyable_v<Attribution>);
  struct Row {
    Attribution attribution;
    std::int64_t samples = 0;
  };
  std::vector<Row> mine;
  for (const Attribution& attribution : survival_.meter().by_replica()) {
    mine.push_back({.attribution = attribution, .samples = samples_of_[mine.size()]});
  }
  World& world = session_.world();
  std::vector<ReplicaTime> all;
  for (const std::string& theirs :
       world.exchange({reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(Row)})) {
    for (std::size_t at = 0; at < theirs.size(); at += sizeof(Row)) {
      Row row;
      std::memcpy(&row, theirs.data() + at, sizeof(Row));
      all.push_back({.device = world.names()[all.size()],
                     .attribution = row.attribution,
                     .samples = row.samples});
    }
  }
  return all;
}

void FitRun::build_from_data() {
  const std::vector<ElementSpec> spec = batches_.element_spec();
  const std::size_t inputs = impl_.network->input_count();
  require(spec.size() == inputs + 1 || spec.size() == inputs + 2,
          "[fit] an element of the data set must have {} parts ({} inputs and labels), or one more "
          "for sample weights; it has {}",
          inputs + 1, inputs, spec.size());
  std::vector<ValueType> types;
  for (std::size_t i = 0; i < inputs; ++i) {
    const Shape& labels = spec[inputs].shape;
    expect_batches("fit", spec[i].shape, labels);
    require(spec[i].shape[0] == labels[0] || spec[i].shape[0] < 0 || labels[0] < 0,
            "[fit] an element of the data set has the input {} and the labels {}, which are not as "
            "many samples: where it is one sample, call .batch(n) on the data set",
            spec[i].shape, labels);
    types.push_back({spec[i].dtype, spec[i].shape});
  }
  impl_.build(types);
}

void FitRun::set_batches() {
  at_.batch_size = batches_.element_spec().front().shape[0];
  at_.batches = std::max<std::int64_t>(batches_.cardinality().value_or(0), 0);
}

void FitRun::resume() {
  at_ = *impl_.load(options_.resume, LoadPurpose::Resume,
                    [this](const Progress& saved) { accept(saved); });
  set_batches();
}

void FitRun::go_on() {
  recovered_ = true;
  at_ = survival_.restore([this](const Progress& saved) { accept(saved); });
  history_ = survival_.history();
  set_batches();
}

// Rejects a checkpoint that this call cannot resume from, before the model changes.
void FitRun::accept(const Progress& saved) {
  takers_of(saved.callbacks);
  const bool no_position = saved.position.empty() && saved.positions_of_workers.empty();
  if ((!saved.mid_epoch() || saved.trained) && no_position) return;
  const bool same_size = saved.batch_size == 0 || saved.batch_size == at_.batch_size;
  const bool same_number = saved.batches == 0 || at_.batches == 0 || saved.batches == at_.batches;
  const auto in_a_pass = [](std::int64_t batches) {
    return batches > 0 ? fmt::format(", {} in a pass", batches) : std::string();
  };
  require(same_size && same_number,
          "[fit] {} was written in the middle of a pass in batches of {}{}, but the data set has "
          "batches of {}{}: resume with the same batch size and drop_remainder, or from a "
          "checkpoint at the end of an epoch",
          options_.resume.string(), saved.batch_size, in_a_pass(saved.batches), at_.batch_size,
          in_a_pass(at_.batches));
  next_iterator_ = nullptr;  // it has already started; restore a new one
  open_pass(saved.pass);
  if (!saved.positions_of_workers.empty()) {
    restore_worker(saved.positions_of_workers);
  } else if (!saved.position.empty()) {
    iterator_->restore_state(saved.position);
  }
  given_in_pass_ = 1;
}

std::vector<Callback*> FitRun::takers_of(const std::vector<CallbackState>& states) const {
  std::vector<Callback*> takers;
  for (const CallbackState& state : states) {
    const auto free = std::ranges::find_if(callbacks_, [&](const CallbackRef& each) {
      return each->kind() == state.kind && !std::ranges::count(takers, each.get());
    });
    require(free != callbacks_.end(),
            "[fit] {} has the saved state of {}, but this call has no such callback: add it ({} in "
            "all), or use model.load, which ignores it",
            options_.resume.string(), state.kind,
            std::ranges::count(states, state.kind, &CallbackState::kind));
    takers.push_back(free->get());
  }
  return takers;
}

void FitRun::restore_callbacks() {
  const std::vector<Callback*> takers = takers_of(at_.callbacks);
  for (std::size_t i = 0; i < takers.size(); ++i) {
    takers[i]->restore_tensors(std::move(at_.callbacks[i].tensors));
    takers[i]->restore_state(at_.callbacks[i].text);
  }
  at_.position = {};
  at_.callbacks.clear();
}

FitInfo FitRun::info() const {
  FitInfo info{.initial_epoch = at_.epoch,
               .epochs = options_.epochs,
               .steps_per_epoch = options_.steps_per_epoch,
               .log_names = {},
               .validates = options_.validation_data.has_value(),
               .recovered = recovered_};
  if (!info.steps_per_epoch) info.steps_per_epoch = batches_.cardinality();
  for (const Metric& metric : impl_.metrics()) info.log_names.push_back(metric->name());
  if (options_.validation_data) {
    for (const Metric& metric : impl_.metrics()) info.log_names.push_back("val_" + metric->name());
  }
  for (const char* name : {"lr", "seconds", "samples_per_s"}) info.log_names.emplace_back(name);
  return info;
}

bool FitRun::interrupted() {
  if (options_.interrupted && options_.interrupted()) history_.interrupted = true;
  return history_.interrupted;
}

void FitRun::run_epoch(std::int64_t epoch) {
  const std::int64_t begin = now_ns();
  scale_.warned = false;
  for_callbacks([&](Callback& callback) { callback.on_epoch_begin(model_, epoch); });
  if (!at_.mid_epoch()) impl_.reset_metrics();
  samples_here_ = 0;
  if (!at_.trained && run_steps()) {
    at_.trained = true;
    if (!options_.steps_per_epoch) {
      ++at_.pass;
      close_pass();
    }
  }
  const double train_seconds = static_cast<double>(now_ns() - begin) * 1e-9;
  impl_.stopped_in_epoch = !at_.trained;
  Logs logs = logs_of_steps(begin, train_seconds);
  if (!history_.failure.empty()) {
    history_.epochs.push_back({epoch, logs});
    return;
  }
  for_callbacks([&](Callback& callback) { callback.on_epoch_trained(model_, epoch, logs); });
  // A run that resumes from the checkpoint does the rest.
  const bool stopped = impl_.stopped_in_epoch && history_.interrupted;
  if (stopped || !validate(logs)) {
    history_.epochs.push_back({epoch, logs});
    return;
  }
  logs.set("seconds", of_chief(static_cast<double>(now_ns() - begin) * 1e-9));
  history_.epochs.push_back({epoch, logs});
  if (at_.trained) {
    ++at_.epoch;
    at_.epoch_step = 0;
    at_.epoch_samples = 0;
    at_.trained = false;
  }
  for_callbacks([&](Callback& callback) { callback.on_epoch_end(model_, epoch, logs); });
}

Logs FitRun::logs_of_steps(std::int64_t begin_ns, double train_seconds) {
  Logs logs = impl_.read_metrics();
  logs.set("lr", model_.learning_rate());
  logs.set("seconds", of_chief(static_cast<double>(now_ns() - begin_ns) * 1e-9));
  logs.set("samples_per_s",
           of_chief(static_cast<double>(samples_here_) / std::max(train_seconds, 1e-9)));
  return logs;
}

bool FitRun::validate(Logs& logs) {
  if (!options_.validation_data) return true;
  const PhaseScope validation(session_.phases(), Phase::Validation);
  const std::optional<Logs> found =
      evaluate_on(impl_, {*options_.validation_data}, options_.validation_steps, "validation",
                  [this] { return interrupted(); });
  if (!found) return false;
  for (const auto& [name, value] : found->items()) logs.set("val_" + name, value);
  return true;
}

void FitRun::check_validation() {
  evaluate_on(impl_, {*options_.validation_data}, 1, "validation");
}

Progress FitRun::progress() const {
  Progress progress = at_;
  if (iterator_ != nullptr && reads_own_files()) {
    progress.positions_of_workers = session_.world().exchange(iterator_->save());
  } else if (iterator_ != nullptr) {
    progress.position = iterator_->save_state();
  }
  for (const CallbackRef& callback : callbacks_) {
    CallbackState state{.kind = callback->kind(),
                        .text = callback->save_state(),
                        .tensors = callback->save_tensors()};
    if (state.text.empty() && state.tensors.empty()) continue;
    progress.callbacks.push_back(std::move(state));
  }
  return progress;
}

void expect_an_end(const Dataset& batches, const std::optional<std::int64_t>& steps,
                   const char* caller, const char* option) {
  require(steps || batches.node()->cardinality() != kInfinite,
          "[{}] the data set never ends (it is repeated without a count): say how many batches to "
          "take with .{} = n, or end it with take(n)",
          caller, option);
}

History fit_model(Model& model, const WorkerBatches& data, const FitOptions& options) {
  const Dataset& batches = data.batches;
  impl_of(model).expect_compiled("fit");
  require(!impl_of(model).progress, "[fit] fit is already running on this model");
  require(options.initial_epoch >= 0 && options.epochs >= 0,
          "[fit] epochs ({}) and initial_epoch ({}) must not be negative", options.epochs,
          options.initial_epoch);
  require(!options.steps_per_epoch || *options.steps_per_epoch > 0,
          "[fit] steps_per_epoch must be positive, not {}", options.steps_per_epoch.value_or(0));
  require(options.noise_scale_every.value_or(0) >= 0,
          "[fit] noise_scale_every is {}: give a number of steps, or 0 to leave it out",
          options.noise_scale_every.value_or(0));
  require(!options.sample_weight.defined() && options.validation_split == 0.0,
          "[fit] sample_weight and validation_split are for tensors: put the weights into the data "
          "set as a third component, and give validation_data");
  expect_an_end(batches, options.steps_per_epoch, "fit", "steps_per_epoch");
  if (options.validation_data) {
    expect_an_end(*options.validation_data, options.validation_steps, "fit: validation_data",
                  "validation_steps");
  }
  Survival survival(impl_of(model), options.copy_state_every);
  RunProfiler profiler(impl_of(model).session());
  for (;;) {
    History so_far;
    {
      FitRun run(model, training_share(impl_of(model), data), options, survival, profiler);
      if (std::optional<History> history = run.run()) return std::move(*history);
      so_far = run.history();
    }
    survival.renew(so_far);
  }
}

History Model::fit(const Dataset& batches, const FitOptions& options) {
  return fit_model(*this, {batches}, options);
}

History Model::fit(const std::vector<Tensor>& x, const Tensor& y, const FitOptions& options) {
  impl_->expect_compiled("fit");
  Dataset samples = samples_of(x, y, options.sample_weight, "fit");
  const std::int64_t count = x.front().shape()[0];
  require(count > 0, "[fit] the data set gave no batch: x has the shape {}", x.front().shape());
  require(options.batch_size > 0, "[fit] batch_size must be positive, not {}", options.batch_size);
  require(options.validation_split >= 0.0 && options.validation_split < 1.0,
          "[fit] validation_split is a fraction of the samples in [0, 1), not {}",
          options.validation_split);
  FitOptions rest = options;
  rest.sample_weight = {};
  rest.validation_split = 0.0;
  std::int64_t kept = count;
  if (options.validation_split > 0.0) {
    require(!options.validation_data,
            "[fit] both validation_split and validation_data are given: choose one");
    kept = static_cast<std::int64_t>(static_cast<double>(count) * (1.0 - options.validation_split));
    require(kept > 0 && kept < count,
            "[fit] validation_split = {} of {} samples leaves {} for training and {} for "
            "validation; both need some",
            options.validation_split, count, kept, count - kept);
    rest.validation_data = samples.skip(kept).batch(options.batch_size);
    samples = samples.take(kept);
  }
  if (options.shuffle) samples = samples.shuffle({.buffer = kept, .seed = impl_->options.seed});
  return fit(samples.batch(options.batch_size), rest);
}

History Model::fit(const Tensor& x, const Tensor& y, const FitOptions& options) {
  return fit(std::vector{x}, y, options);
}

}  // namespace lockstep
