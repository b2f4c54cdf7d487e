// evaluate, predict, and single batches.
#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/device/memory_error.h"
#include "lockstep/train/fit_run.h"
#include "lockstep/train/verbose.h"

namespace lockstep {
namespace {

// Calls f with every batch of a data set, the waits for input recorded. False where it was
// interrupted before the last.
template <class F>
bool for_each_batch(Model::Impl& impl, const Dataset& batches, StepMode mode,
                    std::optional<std::int64_t> steps, const char* caller,
                    const std::function<bool()>& interrupted, F&& f) {
  Track& track = impl.session().host_track();
  const std::unique_ptr<Iterator> iterator =
      batches.iterator({.memory = impl.session().batch_memory()});
  std::int64_t done = 0;
  while (!steps || done < *steps) {
    if (interrupted && interrupted()) return false;
    std::optional<Element> element;
    {
      ScopedSpan span(track, "next batch", SpanKind::Input);
      element = iterator->next();
    }
    if (!element) break;
    f(split_element(*element, impl.network->input_count(), mode, caller), done);
    ++done;
  }
  require(done > 0,
          "[{}] the data set gave no batch: it is empty, or smaller than one batch with "
          "drop_remainder",
          caller);
  return true;
}

// Where in a data set some rows are.
struct Place {
  std::int64_t batch = 0;
  std::int64_t first_row = 0;  // of the batch, where it was split
};

[[noreturn]] void fail_at(const char* caller, const Place& place, const DataError& error) {
  const std::string from =
      place.first_row > 0 ? fmt::format(", from row {}", place.first_row) : std::string();
  fail<DataError>("[{}] batch {}{}: {}", caller, place.batch, from, error.what());
}

// Runs a step; an error in the data says which batch it was.
void run_at(Session& session, Step& step, const Batch& batch, const char* caller,
            const Place& place) {
  try {
    step.run(session, batch);
  } catch (const DataError& error) {
    fail_at(caller, place, error);
  }
}

// The same for a batch that stands alone.
Step& run_step(Model::Impl& impl, StepMode mode, const Batch& batch, const char* caller) {
  Step& step = impl.step_for(mode, batch, caller);
  run_at(impl.session(), step, batch, caller, {});
  return step;
}

Batch rows_of(const Batch& batch, std::int64_t begin, std::int64_t count) {
  if (count == batch.size()) return batch;
  Batch rows;
  for (const Tensor& input : batch.inputs) rows.inputs.push_back(input.rows(begin, count));
  if (batch.labels.defined()) rows.labels = batch.labels.rows(begin, count);
  if (batch.sample_weight.defined()) rows.sample_weight = batch.sample_weight.rows(begin, count);
  return rows;
}

// Calls f(rows, step, first row) with the whole of a batch, or, where the memory for its step
// cannot be had, with one part after the other, each half as large as what did not fit; before each
// of them is planned, before(rows).
template <class Before, class F>
void for_parts_that_fit(Model::Impl& impl, StepMode mode, const Batch& batch, const char* caller,
                        Before&& before, F&& f) {
  std::int64_t begin = 0;
  do {
    const std::int64_t left = batch.size() - begin;
    const std::int64_t count = impl.most_rows > 0 ? std::min(left, impl.most_rows) : left;
    const Batch rows = rows_of(batch, begin, count);
    before(rows);
    Step* step = nullptr;
    try {
      step = &impl.step_for(mode, rows, caller);
    } catch (const MemoryError&) {
      if (count <= impl.session().size()) throw;
      impl.most_rows = (count + 1) / 2;
      continue;
    }
    f(rows, *step, begin);
    begin += count;
  } while (begin < batch.size());
}

// Runs the steps of a data set's batches and calls read(step) with each when it is over: at once,
// or, on a device that runs behind the host, while the next one is under way. False where it was
// interrupted.
template <class F>
bool run_steps(Model::Impl& impl, const Dataset& batches, StepMode mode,
               std::optional<std::int64_t> steps, const char* caller,
               const std::function<bool()>& interrupted, F&& read) {
  struct Begun {
    Step step;
    Place place;
  };
  std::optional<Begun> begun;
  const auto end_begun = [&] {
    if (!begun) return;
    const Begun ending = *std::exchange(begun, std::nullopt);
    try {
      ending.step.wait();
    } catch (const DataError& error) {
      fail_at(caller, ending.place, error);
    }
    read(ending.step);
  };
  const auto end_unless_it_fits = [&](const Batch& rows) {
    if (begun && !begun->step.fits(rows)) end_begun();  // what is planned now is measured
  };
  const auto run_rows = [&](const Batch& rows, Step& step, const Place& place) {
    run_at(impl.session(), step, rows, caller, place);
    const Step running = step;
    try {
      end_begun();
    } catch (...) {
      running.forget();
      throw;
    }
    begun = {running, place};
    if (impl.session().device().shares_host_memory()) end_begun();
  };
  try {
    const bool whole = for_each_batch(
        impl, batches, mode, steps, caller, interrupted, [&](const Batch& batch, std::int64_t n) {
          for_parts_that_fit(impl, mode, batch, caller, end_unless_it_fits,
                             [&](const Batch& rows, Step& step, std::int64_t first_row) {
                               run_rows(rows, step, {.batch = n, .first_row = first_row});
                             });
        });
    end_begun();
    return whole;
  } catch (...) {
    if (begun) begun->step.forget();
    throw;
  }
}

Batch single_batch(const std::vector<Tensor>& x, const Tensor& y, const BatchOptionsOnce& options,
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

std::optional<Logs> evaluate_on(Model::Impl& impl, const Dataset& batches,
                                std::optional<std::int64_t> steps, const char* caller,
                                const std::function<bool()>& interrupted) {
  // fit may be in the middle of an epoch: its metrics stay as they are.
  const std::vector<Tensor> before = impl.metric_state();
  impl.reset_metrics();
  std::optional<Logs> logs;
  try {
    const bool whole = run_steps(impl, batches, StepMode::Evaluate, steps, caller, interrupted,
                                 [](const Step&) {});
    if (whole) logs = impl.read_metrics();
  } catch (...) {
    impl.set_metric_state(before);
    throw;
  }
  impl.set_metric_state(before);
  return logs;
}

Logs Model::evaluate(const Dataset& batches, const EvaluateOptions& options) {
  impl_->expect_compiled("evaluate");
  expect_an_end(batches, options.steps, "evaluate", "steps");
  const PhaseScope validation(impl_->session().phases(), Phase::Validation);
  Logs logs = *evaluate_on(*impl_, batches, options.steps, "evaluate");
  show_result(options.verbose, "evaluate - " + logs.str());
  return logs;
}

Logs Model::evaluate(const std::vector<Tensor>& x, const Tensor& y,
                     const EvaluateOptions& options) {
  return evaluate(samples_of(x, y, options.sample_weight, "evaluate").batch(options.batch_size),
                  options);
}

Logs Model::evaluate(const Tensor& x, const Tensor& y, const EvaluateOptions& options) {
  return evaluate(std::vector{x}, y, options);
}

std::vector<Tensor> Model::predict_outputs(const Dataset& batches, const PredictOptions& options) {
  expect_an_end(batches, options.steps, "predict", "steps");
  std::vector<std::vector<Tensor>> parts;
  const auto keep = [&](const Step& step) {
    const std::vector<Tensor> outputs = step.outputs();
    parts.resize(outputs.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) parts[i].push_back(outputs[i]);
  };
  run_steps(*impl_, batches, StepMode::Predict, options.steps, "predict", {}, keep);
  std::vector<Tensor> outputs;
  for (const std::vector<Tensor>& list : parts)
    outputs.push_back(concatenate_rows(list, "predict"));
  show_result(options.verbose, fmt::format("predict - {} samples", outputs.front().shape()[0]));
  return outputs;
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
  return run_step(*impl_, StepMode::Predict, batch, "predict_on_batch").outputs().front();
}

Logs Model::train_on_batch(const std::vector<Tensor>& x, const Tensor& y,
                           const BatchOptionsOnce& options) {
  const Batch batch =
      single_batch(x, y, options, *impl_->network, StepMode::Train, "train_on_batch");
  impl_->expect_compiled("train_on_batch");
  Session& session = impl_->session();
  impl_->reset_metrics();
  run_step(*impl_, StepMode::Train, batch, "train_on_batch");
  ++session.step;
  return impl_->read_metrics();
}

Logs Model::train_on_batch(const Tensor& x, const Tensor& y, const BatchOptionsOnce& options) {
  return train_on_batch(std::vector{x}, y, options);
}

Logs Model::test_on_batch(const std::vector<Tensor>& x, const Tensor& y,
                          const BatchOptionsOnce& options) {
  const Batch batch =
      single_batch(x, y, options, *impl_->network, StepMode::Evaluate, "test_on_batch");
  impl_->expect_compiled("test_on_batch");
  impl_->reset_metrics();
  run_step(*impl_, StepMode::Evaluate, batch, "test_on_batch");
  return impl_->read_metrics();
}

Logs Model::test_on_batch(const Tensor& x, const Tensor& y, const BatchOptionsOnce& options) {
  return test_on_batch(std::vector{x}, y, options);
}

}  // namespace lockstep
