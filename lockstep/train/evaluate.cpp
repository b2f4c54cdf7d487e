// evaluate, predict, and single batches.
#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/device/memory_error.h"
#include "lockstep/train/fit_run.h"
#include "lockstep/train/step_vote.h"
#include "lockstep/train/verbose.h"

namespace lockstep {
namespace {

// Calls f with every batch of a data set and records the waits for input. False if it was
// interrupted before the last batch.
template <class F>
bool for_each_batch(ModelImpl& impl, const WorkerBatches& data, StepMode mode,
                    std::optional<std::int64_t> steps, const char* caller,
                    const std::function<bool()>& interrupted, F&& f) {
  const Dataset& batches = data.batches;
  Track& track = impl.session().host_track();
  const std::unique_ptr<Iterator> iterator =
      batches.iterator({.share = data.share, .memory = impl.session().batch_memory()});
  World& world = impl.session().world();
  std::int64_t done = 0;
  while (!steps || done < *steps) {
    std::optional<Element> element;
    // An error or an interrupt of one worker is one of all.
    const StepVotes votes = take_votes(world, [&] {
      if (interrupted && interrupted()) return StepVote{.interrupted = true};
      ScopedSpan span(track, "next batch", SpanKind::Input);
      element = iterator->next();
      return StepVote{.has_batch = element.has_value(),
                      .rows = element ? element->front().shape()[0] : 0};
    });
    if (votes.any(&StepVote::interrupted)) return false;
    if (!votes.any(&StepVote::has_batch)) break;
    if (!element) element = data.without_rows();
    Batch batch = split_element(*element, impl.network->input_count(), mode, caller);
    if (data.own_rows_only) {
      for (const StepVote& vote : votes.all) batch.rows_of_worker.push_back(vote.rows);
      batch.first_row = votes.rows_before(world.worker());
    }
    f(batch, done);
    ++done;
  }
  require(done > 0,
          "[{}] the data set gave no batch: it is empty, or smaller than one batch with "
          "drop_remainder",
          caller);
  return true;
}

// The position of rows in a data set.
struct Place {
  std::int64_t batch = 0;
  std::int64_t first_row = 0;  // in the batch, if it was split
};

[[noreturn]] void fail_at(const char* caller, const Place& place, const DataError& error) {
  const std::string from =
      place.first_row > 0 ? fmt::format(", from row {}", place.first_row) : std::string();
  fail<DataError>("[{}] batch {}{}: {}", caller, place.batch, from, error.what());
}

// Runs a step; a DataError names the batch.
void run_at(Session& session, CompiledStep& step, const Batch& batch, const char* caller,
            const Place& place) {
  try {
    run_step(step, session, batch);
  } catch (const DataError& error) {
    fail_at(caller, place, error);
  }
}

// The same for a single batch.
CompiledStep& run_batch(ModelImpl& impl, StepMode mode, const Batch& batch, const char* caller) {
  CompiledStep& step = impl.step_for(impl.request_for(mode, batch, caller));
  run_at(impl.session(), step, batch, caller, {});
  return step;
}

// Rows of a global batch, from `begin` on; where a worker has its own rows only, those of them.
Batch rows_of(const Batch& batch, std::int64_t begin, std::int64_t count, int worker) {
  if (count == batch.global_size()) return batch;
  Batch rows;
  std::int64_t first = begin;  // of this worker's, in what it has
  if (!batch.rows_of_worker.empty()) {
    std::int64_t before = 0;
    for (const std::int64_t theirs : batch.rows_of_worker) {
      const std::int64_t from = std::max(before, begin);
      const std::int64_t to = std::min(before + theirs, begin + count);
      rows.rows_of_worker.push_back(std::max<std::int64_t>(to - from, 0));
      before += theirs;
    }
    const auto mine = rows.rows_of_worker.begin() + worker;
    rows.first_row = std::accumulate(rows.rows_of_worker.begin(), mine, std::int64_t{0});
    first = std::clamp<std::int64_t>(begin - batch.first_row, 0, batch.size());
    count = *mine;
  }
  for (const Tensor& input : batch.inputs) rows.inputs.push_back(input.rows(first, count));
  if (batch.labels.defined()) rows.labels = batch.labels.rows(first, count);
  if (batch.sample_weight.defined()) rows.sample_weight = batch.sample_weight.rows(first, count);
  return rows;
}

// Calls f(rows, step, first row) with a whole batch. If there is not enough memory for its step,
// halves the number of rows until it fits and calls f with one group of rows after another. Calls
// before(request) before each step is planned. Where workers have rows of their own, a group may
// have none for some of them.
template <class Before, class F>
void for_parts_that_fit(ModelImpl& impl, StepMode mode, const Batch& batch, const char* caller,
                        Before&& before, F&& f) {
  const World& world = impl.session().world();
  const std::int64_t fewest = batch.rows_of_worker.empty() ? world.size() : 1;
  std::int64_t begin = 0;
  do {
    const std::int64_t left = batch.global_size() - begin;
    const std::int64_t count = impl.most_rows > 0 ? std::min(left, impl.most_rows) : left;
    const Batch rows = rows_of(batch, begin, count, world.worker());
    const StepRequest request = impl.request_for(mode, rows, caller);
    before(request);
    CompiledStep* step = nullptr;
    try {
      step = &impl.step_for(request);
    } catch (const MemoryError&) {
      if (count <= fewest) throw;
      impl.most_rows = (count + 1) / 2;
      continue;
    }
    f(rows, *step, begin);
    begin += count;
  } while (begin < batch.global_size());
}

// Waits for a step that a device may still be running. An error on one worker reaches all.
void wait_together(World& world, const CompiledStep& step) {
  world.gather([&] {
    step.wait();
    return std::string();
  });
}

// Runs the steps of a data set's batches and calls read(step) when each is done: at once or, on an
// asynchronous device, while the next one is in flight. False if it was interrupted.
template <class F>
bool run_steps(ModelImpl& impl, const WorkerBatches& batches, StepMode mode,
               std::optional<std::int64_t> steps, const char* caller,
               const std::function<bool()>& interrupted, F&& read) {
  Session& session = impl.session();
  const bool waits = session.world().workers() > 1 && !session.device().shares_host_memory();
  StepsInFlight<Place> in_flight([&](const CompiledStep& step, const Place& place) {
    try {
      if (waits) {
        wait_together(session.world(), step);
      } else {
        step.wait();
      }
    } catch (const DataError& error) {
      fail_at(caller, place, error);
    }
    read(step);
  });
  std::vector<Piece> pieces;  // of the last step
  const auto before = [&](const StepRequest& request) {
    if (session.world().workers() == 1) return in_flight.finish_unless(request.signatures);
    // Finishing is collective: a worker's own signatures do not decide.
    if (request.all_pieces != pieces) in_flight.finish();
    pieces = request.all_pieces;
  };
  const auto run_rows = [&](const Batch& rows, CompiledStep& step, const Place& place) {
    run_at(session, step, rows, caller, place);
    in_flight.add(session, step, place);
  };
  const bool whole = for_each_batch(
      impl, batches, mode, steps, caller, interrupted, [&](const Batch& batch, std::int64_t n) {
        for_parts_that_fit(impl, mode, batch, caller, before,
                           [&](const Batch& rows, CompiledStep& step, std::int64_t first_row) {
                             run_rows(rows, step, {.batch = n, .first_row = first_row});
                           });
      });
  in_flight.finish();
  return whole;
}

Batch single_batch(const std::vector<Tensor>& x, const Tensor& y, const OnBatchOptions& options,
                   const Network& network, StepMode mode, const char* caller) {
  std::vector<Tensor> element = x;
  if (y.defined()) element.push_back(y);
  if (options.sample_weight.defined()) element.push_back(options.sample_weight);
  require(x.size() == network.input_count(), "[{}] the model has {} inputs, {} are given", caller,
          network.input_count(), x.size());
  require(mode == StepMode::Predict || y.defined(), "[{}] there are no labels", caller);
  Batch batch = split_element(element, x.size(), mode, caller);
  if (y.defined()) batch.sample_weight = weights_of(batch, options.class_weight);
  return batch;
}

}  // namespace

std::optional<Logs> evaluate_on(ModelImpl& impl, const WorkerBatches& batches,
                                std::optional<std::int64_t> steps, const char* caller,
                                const std::function<bool()>& interrupted) {
  const ActivityScope validating(impl.session().world(), "validating");
  // fit may be in mid-epoch: its metrics must not change.
  const std::vector<Tensor> before = impl.metric_state();
  impl.reset_metrics();
  std::optional<Logs> logs;
  try {
    const bool whole = run_steps(impl, evaluation_share(impl, batches), StepMode::Evaluate, steps,
                                 caller, interrupted, [](const CompiledStep&) {});
    if (whole) logs = impl.read_metrics();
  } catch (...) {
    impl.set_metric_state(before);
    throw;
  }
  impl.set_metric_state(before);
  return logs;
}

Logs evaluate_model(const Model& model, const WorkerBatches& batches,
                    const EvaluateOptions& options) {
  ModelImpl& impl = impl_of(model);
  impl.expect_compiled("evaluate");
  expect_an_end(batches.batches, options.steps, "evaluate", "steps");
  const PhaseScope validation(impl.session().phases(), Phase::Validation);
  try {
    Logs logs = *evaluate_on(impl, batches, options.steps, "evaluate");
    if (is_chief(model)) show_result(options.verbose, "evaluate", "evaluate - " + logs.str());
    return logs;
  } catch (...) {
    impl.session().world().report(std::current_exception());
    throw;
  }
}

Logs Model::evaluate(const Dataset& batches, const EvaluateOptions& options) {
  return evaluate_model(*this, {batches}, options);
}

Logs Model::evaluate(const std::vector<Tensor>& x, const Tensor& y,
                     const EvaluateOptions& options) {
  return evaluate(samples_of(x, y, options.sample_weight, "evaluate").batch(options.batch_size),
                  options);
}

Logs Model::evaluate(const Tensor& x, const Tensor& y, const EvaluateOptions& options) {
  return evaluate(std::vector{x}, y, options);
}

std::vector<Tensor> predict_model(const Model& model, const WorkerBatches& batches,
                                  const PredictOptions& options) {
  ModelImpl& impl = impl_of(model);
  expect_an_end(batches.batches, options.steps, "predict", "steps");
  std::vector<std::vector<Tensor>> parts;
  const auto keep = [&](const CompiledStep& step) {
    parts.resize(step.ranks.front()->output_count());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i].push_back(step.all_rows(impl.session(), i));
    }
  };
  try {
    run_steps(impl, evaluation_share(impl, batches), StepMode::Predict, options.steps, "predict",
              {}, keep);
  } catch (...) {
    impl.session().world().report(std::current_exception());
    throw;
  }
  std::vector<Tensor> outputs;
  for (const std::vector<Tensor>& list : parts)
    outputs.push_back(concatenate_rows(list, "predict"));
  if (is_chief(model)) {
    show_result(options.verbose, "predict",
                fmt::format("predict - {} samples", outputs.front().shape()[0]));
  }
  return outputs;
}

std::vector<Tensor> Model::predict_outputs(const Dataset& batches, const PredictOptions& options) {
  return predict_model(*this, {batches}, options);
}

Tensor Model::predict(const Dataset& batches, const PredictOptions& options) {
  return predict_outputs(batches, options).front();
}

Tensor Model::predict(const Tensor& x, const PredictOptions& options) {
  require(x.defined() && x.shape().rank() > 0,
          "[predict] there is no input: x must have an axis of samples");
  return predict(Dataset::from_tensor_slices({x}).batch(options.batch_size), options);
}

Tensor Model::predict_on_batch(const Tensor& x) {
  const Batch batch =
      single_batch({x}, {}, {}, *impl_->network, StepMode::Predict, "predict_on_batch");
  return run_batch(*impl_, StepMode::Predict, batch, "predict_on_batch")
      .all_rows(impl_->session(), 0);
}

Logs Model::train_on_batch(const std::vector<Tensor>& x, const Tensor& y,
                           const OnBatchOptions& options) {
  const Batch batch =
      single_batch(x, y, options, *impl_->network, StepMode::Train, "train_on_batch");
  impl_->expect_compiled("train_on_batch");
  Session& session = impl_->session();
  impl_->reset_metrics();
  run_batch(*impl_, StepMode::Train, batch, "train_on_batch");
  ++session.step;
  return impl_->read_metrics();
}

Logs Model::train_on_batch(const Tensor& x, const Tensor& y, const OnBatchOptions& options) {
  return train_on_batch(std::vector{x}, y, options);
}

Logs Model::test_on_batch(const std::vector<Tensor>& x, const Tensor& y,
                          const OnBatchOptions& options) {
  const Batch batch =
      single_batch(x, y, options, *impl_->network, StepMode::Evaluate, "test_on_batch");
  impl_->expect_compiled("test_on_batch");
  impl_->reset_metrics();
  run_batch(*impl_, StepMode::Evaluate, batch, "test_on_batch");
  return impl_->read_metrics();
}

Logs Model::test_on_batch(const Tensor& x, const Tensor& y, const OnBatchOptions& options) {
  return test_on_batch(std::vector{x}, y, options);
}

}  // namespace lockstep
