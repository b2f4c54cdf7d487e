// fit: epochs of steps, validation behind each, callbacks around them.
#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/train/model_impl.h"

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

std::vector<const Track*> replica_tracks(Session& session) {
  std::vector<const Track*> tracks;
  for (int r = 0; r < session.size(); ++r) tracks.push_back(&session.track(r));
  return tracks;
}

// One call of fit. Everything that changes while it runs is here, so that an exception leaves the
// model as it is behind the last whole step.
class FitRun {
 public:
  FitRun(Model& model, const Dataset& batches, const FitOptions& options)
      : model_(model),
        impl_(model.impl()),
        session_(impl_.session()),
        track_(session_.host_track()),
        batches_(batches),
        options_(options),
        callbacks_(in_order(options.callbacks)),
        meter_(replica_tracks(session_), track_),
        samples_of_(static_cast<std::size_t>(session_.size()), 0) {}
  ~FitRun() {
    impl_.progress = nullptr;
    impl_.attribution = nullptr;
  }
  FitRun(const FitRun&) = delete;
  FitRun& operator=(const FitRun&) = delete;

  History run();

 private:
  void build_from_data();
  void set_batches();
  void resume();
  void accept(const Progress& saved);
  // The callback for each saved state.
  std::vector<Callback*> takers_of(const std::vector<CallbackState>& states) const;
  void restore_callbacks();
  FitInfo info() const;
  void run_epoch(std::int64_t epoch);
  void open_pass(std::uint64_t pass);
  // Keeps what the pipeline did; when a pass is over, or fit is.
  void close_pass();
  std::optional<Element> next_element();
  bool run_steps();  // of an epoch; false where it was stopped
  // Begins a step, and ends it, or, where the host runs ahead of the device, the one before it.
  void train(const Element& element);
  std::int64_t at_work_ns(int replica) const;
  void observe(const Step& step);
  void check_replicas();
  bool callbacks_look_at_model(std::int64_t epoch_step);
  [[noreturn]] void fail_at_step(std::int64_t epoch_step, const DataError& error) const;

  // A step that has begun, and what has to be known when it ends.
  struct Begun {
    Step step;
    std::int64_t number = 0;  // from the beginning of training
    std::int64_t epoch_step = 0;
    std::int64_t samples = 0;
    std::int64_t samples_in_epoch = 0;
    std::int64_t begin_ns = 0;
  };
  void end(const Begun& begun);
  void end_begun();
  Logs read_logs();  // metrics, and those of the validation data
  Progress progress() const;

  template <class F>
  void for_callbacks(F&& f) {
    if (callbacks_.empty()) return;
    ScopedSpan span(track_, "callbacks", SpanKind::Host);
    for (const CallbackRef& callback : callbacks_) f(*callback);
  }

  Model& model_;
  Model::Impl& impl_;
  Session& session_;
  Track& track_;
  const Dataset& batches_;
  const FitOptions& options_;
  std::vector<CallbackRef> callbacks_;
  AttributionMeter meter_;
  History history_;

  Progress at_;  // without position and callbacks, which are asked for when they are needed
  std::unique_ptr<Iterator> iterator_;
  std::int64_t given_in_pass_ = 0;        // batches of this pass, to tell an empty data set
  std::vector<std::int64_t> samples_of_;  // of each replica
  std::vector<std::int64_t> at_work_ns_;  // of each replica, when the step began
  std::int64_t samples_here_ = 0;         // samples of this epoch that this call trained on
  std::optional<Begun> begun_;            // the last step, where it has not ended
  std::int64_t ended_ns_ = 0;             // when a step ended last
};

History FitRun::run() {
  build_from_data();
  impl_.stopping = false;
  at_.epoch = options_.initial_epoch;
  at_.pass = static_cast<std::uint64_t>(options_.initial_epoch);
  set_batches();
  if (!options_.resume.empty()) resume();
  impl_.progress = [this] { return progress(); };
  impl_.attribution = [this] { return meter_.read(); };

  const std::int64_t skipped_before = impl_.skipped_steps();
  const FitInfo known = info();
  for_callbacks([&](Callback& callback) { callback.on_train_begin(model_, known); });
  restore_callbacks();
  while (at_.epoch < options_.epochs && !impl_.stopping) run_epoch(at_.epoch);
  for_callbacks([&](Callback& callback) { callback.on_train_end(model_); });
  close_pass();

  history_.attribution = meter_.read();
  const std::vector<Attribution> by_replica = meter_.by_replica();
  for (int r = 0; r < session_.size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    history_.replicas.push_back({.device = session_.replicas().device(r).name(),
                                 .attribution = by_replica[i],
                                 .samples = samples_of_[i]});
  }
  history_.seconds = meter_.seconds();
  history_.overflowed_steps = impl_.skipped_steps() - skipped_before;
  history_.loss_scale = model_.loss_scale();
  history_.top_ops = slowest_ops(session_.track(0), 10);
  return std::move(history_);
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
    require(spec[i].shape.rank() > 0, "[fit] input {} is a scalar: batch the data set", i);
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

// Refuses what this call cannot go on from, before the model changes.
void FitRun::accept(const Progress& saved) {
  takers_of(saved.callbacks);
  if (!saved.mid_epoch() && saved.position.empty()) return;
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
  open_pass(saved.pass);
  if (!saved.position.empty()) iterator_->restore(saved.position);
  given_in_pass_ = 1;
}

std::vector<Callback*> FitRun::takers_of(const std::vector<CallbackState>& states) const {
  std::vector<Callback*> takers;
  for (const CallbackState& state : states) {
    const auto free = std::ranges::find_if(callbacks_, [&](const CallbackRef& each) {
      return each->kind() == state.kind && !std::ranges::count(takers, each.get());
    });
    require(free != callbacks_.end(),
            "[fit] {} keeps the state of {}, and no callback of this call takes it: add this "
            "callback ({} in all), or use model.load to go on without",
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
  at_.position.clear();
  at_.callbacks.clear();
}

FitInfo FitRun::info() const {
  FitInfo info{.initial_epoch = at_.epoch,
               .epochs = options_.epochs,
               .steps_per_epoch = options_.steps_per_epoch,
               .log_names = {}};
  if (!info.steps_per_epoch) info.steps_per_epoch = batches_.cardinality();
  for (const Metric& metric : impl_.metrics()) info.log_names.push_back(metric->name());
  if (options_.validation_data) {
    for (const Metric& metric : impl_.metrics()) info.log_names.push_back("val_" + metric->name());
  }
  for (const char* name : {"lr", "seconds", "samples_per_s"}) info.log_names.emplace_back(name);
  return info;
}

void FitRun::run_epoch(std::int64_t epoch) {
  const std::int64_t begin = now_ns();
  for_callbacks([&](Callback& callback) { callback.on_epoch_begin(model_, epoch); });
  if (!at_.mid_epoch()) impl_.reset_metrics();
  samples_here_ = 0;
  const bool finished = run_steps();
  const double train_seconds = static_cast<double>(now_ns() - begin) * 1e-9;
  Logs logs = read_logs();
  logs.set("lr", model_.learning_rate());
  logs.set("seconds", static_cast<double>(now_ns() - begin) * 1e-9);
  logs.set("samples_per_s", static_cast<double>(samples_here_) / std::max(train_seconds, 1e-9));
  history_.epochs.push_back({epoch, logs});

  if (finished) {
    ++at_.epoch;
    at_.epoch_step = 0;
    at_.epoch_samples = 0;
    if (!options_.steps_per_epoch) {
      ++at_.pass;
      close_pass();
    }
  }
  for_callbacks([&](Callback& callback) { callback.on_epoch_end(model_, epoch, logs); });
}

bool FitRun::run_steps() {
  bool finished = false;
  try {
    while (!impl_.stopping) {
      finished = options_.steps_per_epoch && at_.epoch_step >= *options_.steps_per_epoch;
      if (finished) break;
      const std::optional<Element> element = next_element();
      finished = !element;
      if (finished) break;
      train(*element);
    }
  } catch (...) {
    end_begun();  // it was in order, or its own error comes first
    throw;
  }
  end_begun();
  return finished;
}

void FitRun::open_pass(std::uint64_t pass) {
  iterator_ = batches_.iterator(
      {.epoch = pass, .memory = session_.batch_memory(), .recorder = &session_.recorder()});
}

void FitRun::close_pass() {
  if (iterator_ == nullptr) return;
  history_.input = iterator_->report();
  history_.skipped += history_.input->skipped;
  iterator_ = nullptr;
}

std::optional<Element> FitRun::next_element() {
  ScopedSpan span(track_, "next batch", SpanKind::Input);
  for (;;) {
    if (iterator_ == nullptr) {
      open_pass(at_.pass);
      given_in_pass_ = 0;
    }
    std::optional<Element> element = iterator_->next();
    if (element) {
      ++given_in_pass_;
      return element;
    }
    require(given_in_pass_ > 0,
            "[fit] the data set gave no batch: it is empty, or smaller than one batch with "
            "drop_remainder");
    if (!options_.steps_per_epoch) return std::nullopt;
    ++at_.pass;
    close_pass();
  }
}

void FitRun::fail_at_step(std::int64_t epoch_step, const DataError& error) const {
  fail<DataError>("[fit] epoch {}, step {}: {}", at_.epoch, epoch_step, error.what());
}

void FitRun::train(const Element& element) {
  const std::int64_t begin = now_ns();
  Batch batch = split_element(element, impl_.network->input_count(), StepMode::Train, "fit");
  if (!options_.class_weight.empty()) {
    try {
      batch.sample_weight = weights_of(batch, options_.class_weight);
    } catch (const DataError& error) {
      fail_at_step(at_.epoch_step, error);
    }
  }
  if (begun_ && begun_->samples != batch.size()) end_begun();  // what is planned now is measured
  const std::int64_t asked_ns = now_ns();
  Step& step = impl_.step_for(StepMode::Train, batch, "fit");
  if (impl_.balancer && step.planned) {
    impl_.balancer->planned(step.pieces, static_cast<double>(now_ns() - asked_ns) * 1e-9);
  }
  if (begun_ && begun_->step.replicas != step.replicas) end_begun();
  history_.peak_bytes = std::max(history_.peak_bytes, step.peak_bytes());
  at_work_ns_.clear();
  for (int r = 0; r < session_.size(); ++r) at_work_ns_.push_back(at_work_ns(r));
  try {
    step.run(session_, batch);
  } catch (const DataError& error) {
    fail_at_step(at_.epoch_step, error);
  }
  if (impl_.balancer && !step.planned) observe(step);
  for (std::size_t r = 0; r < step.pieces.size(); ++r) samples_of_[r] += step.pieces[r].size();

  at_.epoch_samples += batch.size();
  samples_here_ += batch.size();
  history_.samples += batch.size();
  Begun begun{.step = step,
              .number = session_.step,
              .epoch_step = at_.epoch_step,
              .samples = batch.size(),
              .samples_in_epoch = at_.epoch_samples,
              .begin_ns = begin};
  ++session_.step;
  ++at_.epoch_step;
  ++history_.steps;
  try {
    end_begun();
  } catch (...) {
    begun.step.forget();
    throw;
  }
  begun_ = std::move(begun);
  check_replicas();
  const bool look = callbacks_look_at_model(begun_->epoch_step);
  if (look || impl_.balancer || session_.device().shares_host_memory()) end_begun();
}

bool FitRun::callbacks_look_at_model(std::int64_t epoch_step) {
  bool look = false;
  for (const CallbackRef& callback : callbacks_) {
    if (callback->looks_at_model(model_, epoch_step)) look = true;
  }
  return look;
}

void FitRun::end_begun() {
  if (begun_) end(*std::exchange(begun_, std::nullopt));
}

void FitRun::end(const Begun& begun) {
  double loss = 0;
  try {
    loss = begun.step.loss_sum() / begun.step.weight();
  } catch (const DataError& error) {
    fail_at_step(begun.epoch_step, error);
  }
  if (!std::isfinite(loss) && !history_.first_non_finite_step) {
    history_.first_non_finite_step = begun.number;
  }
  const BatchLogs logs(model_, loss, begun.samples, begun.samples_in_epoch);
  for_callbacks([&](Callback& callback) { callback.on_batch_end(model_, begun.epoch_step, logs); });
  const std::int64_t now = now_ns();
  if (!begun.step.planned) {
    const std::int64_t since = std::max(begun.begin_ns, ended_ns_);
    history_.step_ms.push_back(static_cast<float>(static_cast<double>(now - since) * 1e-6));
  }
  ended_ns_ = now;
}

std::int64_t FitRun::at_work_ns(int replica) const {
  const Track& track = session_.track(replica);
  return track.total_ns(SpanKind::Compute) + track.total_ns(SpanKind::Input);
}

// Tells the balancer how long each replica was at work in this step.
void FitRun::observe(const Step& step) {
  std::vector<double> seconds;
  for (int r = 0; r < session_.size(); ++r) {
    const std::int64_t before = at_work_ns_[static_cast<std::size_t>(r)];
    seconds.push_back(static_cast<double>(at_work_ns(r) - before) * 1e-9);
  }
  impl_.balancer->observe(step.pieces, seconds);
}

void FitRun::check_replicas() {
  const Strategy& strategy = impl_.options.strategy;
  const std::int64_t every = strategy.defined() ? strategy.impl().check_replicas_every : 0;
  if (every > 0 && session_.step % every == 0) session_.expect_mirrored();
}

Logs FitRun::read_logs() {
  Logs logs = impl_.read_metrics();
  if (options_.validation_data) {
    const Logs validation =
        model_.evaluate(*options_.validation_data, {.steps = options_.validation_steps});
    for (const auto& [name, value] : validation.items()) logs.set("val_" + name, value);
  }
  return logs;
}

Progress FitRun::progress() const {
  Progress progress = at_;
  if (iterator_ != nullptr) progress.position = iterator_->save();
  for (const CallbackRef& callback : callbacks_) {
    CallbackState state{.kind = callback->kind(),
                        .text = callback->save_state(),
                        .tensors = callback->save_tensors()};
    if (state.text.empty() && state.tensors.empty()) continue;
    progress.callbacks.push_back(std::move(state));
  }
  return progress;
}

}  // namespace

History Model::fit(const Dataset& batches, const FitOptions& options) {
  impl_->expect_compiled("fit");
  require(!impl_->progress, "[fit] fit is already running on this model");
  require(options.initial_epoch >= 0 && options.epochs >= 0,
          "[fit] epochs ({}) and initial_epoch ({}) must not be negative", options.epochs,
          options.initial_epoch);
  require(!options.steps_per_epoch || *options.steps_per_epoch > 0,
          "[fit] steps_per_epoch must be positive, not {}", options.steps_per_epoch.value_or(0));
  require(!options.sample_weight.defined() && options.validation_split == 0.0,
          "[fit] sample_weight and validation_split are for tensors: put the weights into the data "
          "set as a third component, and give validation_data");
  return FitRun(*this, batches, options).run();
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
