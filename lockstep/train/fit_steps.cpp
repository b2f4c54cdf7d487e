// The steps of fit: batches from the data set, each step begun, ended and told to callbacks.
#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/train/fit_run.h"

namespace lockstep {

bool FitRun::run_steps() {
  bool finished = false;
  try {
    while (!impl_.stopping && history_.failure.empty() && !interrupted()) {
      finished = options_.steps_per_epoch && at_.epoch_step >= *options_.steps_per_epoch;
      if (finished) break;
      const std::optional<Element> element = next_element();
      finished = !element;
      if (finished) break;
      keep_good_state();
      train(*element);
      watch_loss_scale();
      if (!trouble_.empty()) follow_policy();
    }
  } catch (...) {
    end_begun();  // it was in order, or its own error comes first
    throw;
  }
  end_begun();
  if (!trouble_.empty()) follow_policy();
  return finished && history_.failure.empty();
}

void FitRun::open_pass(std::uint64_t pass) {
  if (next_iterator_ != nullptr && next_pass_ == pass) {
    iterator_ = std::move(next_iterator_);
    return;
  }
  iterator_ = batches_.iterator(
      {.epoch = pass, .memory = session_.batch_memory(), .recorder = &session_.recorder()});
}

// While the last batches of a pass, which are made already, are trained on, the first of the next
// are made.
void FitRun::start_next_pass() {
  const bool is_last = !options_.steps_per_epoch && at_.epoch + 1 >= options_.epochs;
  if (next_iterator_ != nullptr || is_last || !iterator_->all_made()) return;
  next_pass_ = at_.pass + 1;
  next_iterator_ = batches_.iterator(
      {.epoch = next_pass_, .memory = session_.batch_memory(), .recorder = &session_.recorder()});
  next_iterator_->start();
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
      start_next_pass();
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

bool FitRun::prepare(const Batch& batch) {
  if (std::exchange(prepared_, true) || !options_.validation_data) return false;
  const bool planned = plan_step(batch).planned;
  check_validation();
  return planned;
}

Step& FitRun::plan_step(const Batch& batch) {
  const std::int64_t asked_ns = now_ns();
  Step& step = impl_.step_for(StepMode::Train, batch, "fit");
  if (!step.planned) return step;
  ++history_.planned;
  if (impl_.balancer) {
    impl_.balancer->planned(step.pieces, static_cast<double>(now_ns() - asked_ns) * 1e-9);
  }
  return step;
}

void FitRun::train(const Element& element) {
  Batch batch = split_element(element, impl_.network->input_count(), StepMode::Train, "fit");
  if (!options_.class_weight.empty()) {
    try {
      batch.sample_weight = weights_of(batch, options_.class_weight);
    } catch (const DataError& error) {
      fail_at_step(at_.epoch_step, error);
    }
  }
  if (begun_ && !begun_->step.fits(batch)) end_begun();  // what is planned now is measured
  const bool prepared = prepare(batch);
  const std::int64_t begin = now_ns();
  Step& step = plan_step(batch);
  step.planned = step.planned || prepared;
  if (begun_ && begun_->step.replicas != step.replicas) end_begun();
  history_.peak_bytes = std::max(history_.peak_bytes, step.peak_bytes());
  start_.reset();
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
  if (accept_loss(loss, begun)) {
    const BatchLogs logs(model_, loss, begun.samples, begun.samples_in_epoch);
    for_callbacks(
        [&](Callback& callback) { callback.on_batch_end(model_, begun.epoch_step, logs); });
  }
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

}  // namespace lockstep
