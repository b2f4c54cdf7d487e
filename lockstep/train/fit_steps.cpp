// The steps of fit: takes batches from the data set, runs and finishes a step for each, and calls
// the callbacks.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/train/fit_run.h"

namespace lockstep {

bool FitRun::run_steps() {
  bool finished = false;
  try {
    while (history_.failure.empty()) {
      if (survival_.due()) {
        in_flight_.finish();
        if (!trouble_.empty()) follow_policy();
        survival_.keep(progress(), history_);
      }
      const std::optional<Turn> turn = next_turn();
      if (!turn) break;
      finished = !turn->element;
      if (finished) break;
      keep_good_state();
      train(*turn);
      watch_loss_scale();
      if (!trouble_.empty()) follow_policy();
    }
  } catch (...) {
    // If the step in flight failed, its error comes first. Other workers may be elsewhere.
    if (session_.world().workers() == 1) in_flight_.finish();
    throw;
  }
  in_flight_.finish();
  if (!trouble_.empty()) follow_policy();
  return finished && history_.failure.empty();
}

IteratorOptions FitRun::iterator_options(std::uint64_t pass) const {
  return {.epoch = pass,
          .share = data_.share,
          .memory = session_.batch_memory(),
          .recorder = &session_.recorder()};
}

void FitRun::open_pass(std::uint64_t pass) {
  if (next_iterator_ != nullptr && next_pass_ == pass) {
    iterator_ = std::move(next_iterator_);
    return;
  }
  iterator_ = batches_.iterator(iterator_options(pass));
}

// Produces the first batches of the next pass while the last ones of this pass, which are already
// produced, are trained on.
void FitRun::start_next_pass() {
  const bool is_last = !options_.steps_per_epoch && at_.epoch + 1 >= options_.epochs;
  if (next_iterator_ != nullptr || is_last || !iterator_->all_made()) return;
  next_pass_ = at_.pass + 1;
  next_iterator_ = batches_.iterator(iterator_options(next_pass_));
  next_iterator_->start();
}

void FitRun::close_pass() {
  if (iterator_ == nullptr) return;
  history_.input = iterator_->report();
  history_.skipped += history_.input->skipped;
  iterator_ = nullptr;
}

bool FitRun::steps_done() const {
  return options_.steps_per_epoch && at_.epoch_step >= *options_.steps_per_epoch;
}

std::optional<Element> FitRun::next_of_pass() {
  ScopedSpan span(track_, "next batch", SpanKind::Input);
  const std::int64_t begin = now_ns();
  if (iterator_ == nullptr) {
    open_pass(at_.pass);
    given_in_pass_ = 0;
  }
  std::optional<Element> element = iterator_->next();
  input_ns_ = now_ns() - begin;
  if (element) {
    ++given_in_pass_;
    start_next_pass();
  }
  return element;
}

void FitRun::expect_batches_in_pass() const {
  require(given_in_pass_ > 0,
          "[fit] the data set gave no batch: it is empty, or smaller than one batch with "
          "drop_remainder");
}

void FitRun::end_pass() {
  expect_batches_in_pass();
  ++at_.pass;
  close_pass();
}

std::optional<FitRun::Turn> FitRun::next_turn() {
  if (session_.world().workers() > 1) return agree_on_turn();
  impl_.writer.check();
  if (impl_.stopping || interrupted()) return std::nullopt;
  if (steps_done()) return Turn{};
  for (;;) {
    std::optional<Element> element = next_of_pass();
    if (element || !options_.steps_per_epoch) {
      if (!element) expect_batches_in_pass();
      return Turn{.element = std::move(element)};
    }
    end_pass();
  }
}

void FitRun::fail_at_step(std::int64_t epoch_step, const DataError& error) const {
  fail<DataError>("[fit] epoch {}, step {}: {}", at_.epoch, epoch_step, error.what());
}

bool FitRun::prepare(const StepRequest& request) {
  if (std::exchange(prepared_, true) || !options_.validation_data) return false;
  const bool planned = plan_step(request).planned;
  check_validation();
  return planned;
}

CompiledStep& FitRun::plan_step(const StepRequest& request, std::optional<bool> missing) {
  const std::int64_t asked_ns = now_ns();
  CompiledStep& step = impl_.step_for(request, missing);
  if (!step.planned) return step;
  ++history_.planned;
  profiler_.planned(step.plan());
  const double seconds = static_cast<double>(now_ns() - asked_ns) * 1e-9;
  noise_.compiled_plain(seconds);
  if (impl_.balancer) {
    impl_.balancer->planned(request.all_pieces, gather_numbers({&seconds, 1}).front());
  }
  return step;
}

// The numbers of all workers, concatenated.
std::vector<double> FitRun::gather_numbers(std::span<const double> mine) const {
  std::vector<double> all;
  for (const std::string& theirs :
       session_.world().exchange({reinterpret_cast<const char*>(mine.data()), mine.size_bytes()})) {
    const std::size_t before = all.size();
    all.resize(before + theirs.size() / sizeof(double));
    std::memcpy(all.data() + before, theirs.data(), theirs.size());
  }
  return all;
}

void FitRun::train(const Turn& turn) {
  Batch batch = split_element(*turn.element, impl_.network->input_count(), StepMode::Train, "fit");
  batch.rows_of_worker = turn.rows_of_worker;
  for (int w = 0; w < session_.world().worker() && !batch.rows_of_worker.empty(); ++w) {
    batch.first_row += batch.rows_of_worker[static_cast<std::size_t>(w)];
  }
  if (!options_.class_weight.empty()) {
    try {
      batch.sample_weight = weights_of(batch, options_.class_weight);
    } catch (const DataError& error) {
      fail_at_step(at_.epoch_step, error);
    }
  }
  const StepRequest request = impl_.request_for(StepMode::Train, batch, "fit");
  const bool sampled = samples_noise(turn, request);
  const bool norms = sampled && session_.world().size() > 1;
  const bool as_before = turn.compiled && !norms && request.all_pieces == last_.pieces;
  if (session_.world().workers() == 1) {
    if (norms) in_flight_.finish();
    in_flight_.finish_unless(request.signatures);
  } else if (!as_before) {
    in_flight_.finish();  // collective: a worker's own signatures do not decide
  }
  const bool prepared = prepare(request);
  if (sampled && !norms) measure_halves(batch, request);
  const std::int64_t begin = now_ns();
  CompiledStep& step = norms ? plan_with_norms(request)
                             : plan_step(request, as_before ? std::optional(false) : std::nullopt);
  if (session_.world().workers() > 1) {
    last_.types.clear();
    for (const Tensor& part : *turn.element) last_.types.push_back({part.dtype(), part.shape()});
    last_.signatures = request.signatures;
    last_.micro_batches = request.micro_batches;
  }
  last_.pieces = request.all_pieces;
  const bool planned = step.planned || prepared;
  start_.reset();
  busy_ns_.clear();
  for (int r = 0; r < session_.local_size(); ++r) busy_ns_.push_back(busy_ns(r));
  bool of_step_before = false;  // whether an error is
  const auto finish_step_before = [&](const DataError* error) {
    of_step_before = true;
    if (error != nullptr) {
      in_flight_.abandon();
      fail_at_step(at_.epoch_step - 1, *error);
    }
    in_flight_.finish();
    of_step_before = false;
  };
  try {
    run_step(step, session_, batch, finish_step_before);
  } catch (const DataError& error) {
    if (of_step_before) throw;
    fail_at_step(at_.epoch_step, error);
  }
  if (session_.world().workers() > 1 && !planned) {
    std::int64_t busy = 0;  // of the rank that took longest
    for (int r = 0; r < session_.local_size(); ++r) {
      busy = std::max(busy, busy_ns(r) - busy_ns_[static_cast<std::size_t>(r)]);
    }
    busy_s_ = static_cast<double>(busy + input_ns_) * 1e-9;
  }
  if (impl_.balancer && !planned) observe(request);
  for (std::size_t r = 0; r < step.pieces.size(); ++r) samples_of_[r] += step.pieces[r].size();

  const std::int64_t samples = batch.global_size();
  at_.epoch_samples += samples;
  samples_here_ += samples;
  history_.samples += samples;
  history_.batch_size = std::max(history_.batch_size, samples);
  history_.micro_batches =
      std::max(history_.micro_batches, std::ssize(step.micro_batches) + std::int64_t{1});
  const StepInfo info{.planned = planned,
                      .number = session_.step,
                      .epoch_step = at_.epoch_step,
                      .samples = samples,
                      .samples_in_epoch = at_.epoch_samples,
                      .begin_ns = begin,
                      .sampled = sampled,
                      .norms = norms};
  ++session_.step;
  session_.world().set_step(session_.step);
  ++at_.epoch_step;
  ++history_.steps;
  in_flight_.finish_before(step);
  check_replicas();
  const bool needed = turn.sync ? *turn.sync : callbacks_need_sync(info.epoch_step);
  const bool sync = needed || impl_.balancer.has_value() || sampled;
  in_flight_.add(session_, step, info);
  if (sync) in_flight_.finish();
}

bool FitRun::callbacks_need_sync(std::int64_t epoch_step) {
  bool look = false;
  for (const CallbackRef& callback : callbacks_) {
    if (callback->needs_sync(model_, epoch_step)) look = true;
  }
  return look;
}

void FitRun::finish(const CompiledStep& step, const StepInfo& info) {
  double loss = 0;
  try {
    loss = step.sum(session_, kLossSumOutput) / step.sum(session_, kWeightOutput);
    if (info.norms) add_noise_sample(step);
  } catch (const DataError& error) {
    fail_at_step(info.epoch_step, error);
  }
  if (accept_loss(loss, info)) {
    const BatchLogs logs(model_, loss, info.samples, info.samples_in_epoch);
    for_callbacks(
        [&](Callback& callback) { callback.on_batch_end(model_, info.epoch_step, logs); });
  }
  survival_.note_step(history_);
  profiler_.note_loss(info.number, loss);
  if (info.sampled) {
    if (const auto noise = noise_.estimate()) profiler_.note_noise(info.number, *noise);
  }
  const std::int64_t now = now_ns();
  const std::int64_t since = std::max(info.begin_ns, ended_ns_);
  if (!info.planned) {
    history_.step_ms.push_back(static_cast<float>(static_cast<double>(now - since) * 1e-6));
  }
  // With the time since the step before: its input, callbacks.
  const std::int64_t phases = session_.phases().ns();
  const std::int64_t idle = ended_ns_ > 0 ? phases - std::exchange(phases_ns_, phases) : 0;
  profiler_.step_done(info.number, (ended_ns_ > 0 ? ended_ns_ : info.begin_ns) + idle, now,
                      samples_of_);
  ended_ns_ = now;
  note_step_time(info);
}

std::int64_t FitRun::busy_ns(int replica) const {
  const Track& track = session_.track(replica);
  return track.total_ns(SpanKind::Compute) + track.total_ns(SpanKind::Input);
}

// Reports to the balancer how long each rank was busy in this step.
void FitRun::observe(const StepRequest& request) {
  std::vector<double> seconds;
  for (int r = 0; r < session_.local_size(); ++r) {
    const std::int64_t before = busy_ns_[static_cast<std::size_t>(r)];
    seconds.push_back(static_cast<double>(busy_ns(r) - before) * 1e-9);
  }
  impl_.balancer->observe(request.all_pieces, gather_numbers(seconds));
}

void FitRun::check_replicas() {
  const Strategy& strategy = impl_.options.strategy;
  const std::int64_t every = strategy.defined() ? impl_of(strategy).check_replicas_every : 0;
  if (every > 0 && session_.step % every == 0) session_.expect_mirrored();
}

}  // namespace lockstep
