// evaluate, predict, and single batches.
#include "lockstep/base/error.h"
#include "lockstep/train/model_impl.h"

namespace lockstep {
namespace {

// Calls f with every batch of a data set, the waits for input recorded; returns their number.
template <class F>
std::int64_t for_each_batch(Model::Impl& impl, const Dataset& batches, StepMode mode,
                            std::optional<std::int64_t> steps, const char* caller, F&& f) {
  Track& track = impl.session().host_track();
  const std::unique_ptr<Iterator> iterator =
      batches.iterator({.memory = impl.session().batch_memory()});
  std::int64_t done = 0;
  while (!steps || done < *steps) {
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
  return done;
}

[[noreturn]] void fail_at_batch(const char* caller, std::int64_t index, const DataError& error) {
  fail<DataError>("[{}] batch {}: {}", caller, index, error.what());
}

// Runs the step of a batch; an error in the data says which batch it was.
Step& run_step(Model::Impl& impl, StepMode mode, const Batch& batch, const char* caller,
               std::int64_t index) {
  Step& step = impl.step_for(mode, batch, caller);
  try {
    step.run(impl.session(), batch);
  } catch (const DataError& error) {
    fail_at_batch(caller, index, error);
  }
  return step;
}

// Runs the steps of a data set's batches and calls read(step) with each when it is over: at once,
// or, on a device that runs behind the host, while the next one is under way.
template <class F>
void run_steps(Model::Impl& impl, const Dataset& batches, StepMode mode,
               std::optional<std::int64_t> steps, const char* caller, F&& read) {
  struct Begun {
    Step step;
    std::int64_t index;
    std::int64_t samples;
  };
  std::optional<Begun> begun;
  const auto end_begun = [&] {
    if (!begun) return;
    const Begun ending = *std::exchange(begun, std::nullopt);
    try {
      ending.step.wait();
    } catch (const DataError& error) {
      fail_at_batch(caller, ending.index, error);
    }
    read(ending.step);
  };
  try {
    for_each_batch(impl, batches, mode, steps, caller, [&](const Batch& batch, std::int64_t index) {
      if (begun && begun->samples != batch.size()) end_begun();  // another plan
      const Step step = run_step(impl, mode, batch, caller, index);
      try {
        end_begun();
      } catch (...) {
        step.forget();
        throw;
      }
      begun = {step, index, batch.size()};
      if (impl.session().device().shares_host_memory()) end_begun();
    });
  } catch (...) {
    if (begun) begun->step.forget();
    throw;
  }
  end_begun();
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

Logs Model::evaluate(const Dataset& batches, const EvaluateOptions& options) {
  impl_->expect_compiled("evaluate");
  // fit may be in the middle of an epoch: its metrics stay as they are.
  const std::vector<Tensor> before = impl_->metric_state();
  impl_->reset_metrics();
  try {
    run_steps(*impl_, batches, StepMode::Evaluate, options.steps, "evaluate", [](const Step&) {});
  } catch (...) {
    impl_->set_metric_state(before);
    throw;
  }
  const Logs logs = impl_->read_metrics();
  impl_->set_metric_state(before);
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
  std::vector<std::vector<Tensor>> parts;
  run_steps(*impl_, batches, StepMode::Predict, options.steps, "predict", [&](const Step& step) {
    const std::vector<Tensor> outputs = step.outputs();
    parts.resize(outputs.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) parts[i].push_back(outputs[i]);
  });
  std::vector<Tensor> outputs;
  for (const std::vector<Tensor>& list : parts)
    outputs.push_back(concatenate_rows(list, "predict"));
  return outputs;
}

Tensor Model::predict(const Dataset& batches, const PredictOptions& options) {
  return predict_outputs(batches, options).front();
}

Tensor Model::predict(const Tensor& x, const PredictOptions& options) {
  require(x.defined() && x.shape().rank() > 0,
          "[predict] there is no input: x must have an axis of samples");
  return predict(Dataset::from_tensors({x}).batch(options.batch_size), options);
}

Tensor Model::predict_on_batch(const Tensor& x) {
  const Batch batch =
      single_batch({x}, {}, {}, *impl_->network, StepMode::Predict, "predict_on_batch");
  return run_step(*impl_, StepMode::Predict, batch, "predict_on_batch", 0).outputs().front();
}

Logs Model::train_on_batch(const std::vector<Tensor>& x, const Tensor& y,
                           const BatchOptionsOnce& options) {
  const Batch batch =
      single_batch(x, y, options, *impl_->network, StepMode::Train, "train_on_batch");
  impl_->expect_compiled("train_on_batch");
  Session& session = impl_->session();
  impl_->reset_metrics();
  run_step(*impl_, StepMode::Train, batch, "train_on_batch", session.step);
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
  run_step(*impl_, StepMode::Evaluate, batch, "test_on_batch", 0);
  return impl_->read_metrics();
}

Logs Model::test_on_batch(const Tensor& x, const Tensor& y, const BatchOptionsOnce& options) {
  return test_on_batch(std::vector{x}, y, options);
}

}  // namespace lockstep
