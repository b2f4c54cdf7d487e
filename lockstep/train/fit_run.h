// FitRun: one call of fit. Everything that changes while it runs is here, so that an exception
// leaves the model as it is after the last whole step. Shared by the files that implement fit.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/train/good_state.h"
#include "lockstep/train/model_impl.h"

namespace lockstep {

class FitRun {
 public:
  FitRun(Model& model, const Dataset& batches, const FitOptions& options);
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
  Progress progress() const;
  // Whether the caller asked fit to end; it stays so.
  bool interrupted();

  // An epoch: its steps, what callbacks save of them, validation, and the end of the epoch.
  void run_epoch(std::int64_t epoch);
  Logs logs_of_steps(std::int64_t begin_ns, double train_seconds);
  // Adds those of the validation data; false where it was interrupted.
  bool validate(Logs& logs);
  // One batch of the validation data, so that what cannot be used is refused before the first step.
  void check_validation();

  void open_pass(std::uint64_t pass);
  void start_next_pass();
  // Keeps what the pipeline did; when a pass is over, or fit is.
  void close_pass();
  std::optional<Element> next_element();
  bool run_steps();  // of an epoch; false where it was stopped
  // Traces and plans the first step, and then looks at the validation data: the plan of training
  // decides how variables lie in memory. Whether a step was planned.
  bool prepare(const Batch& batch);
  Step& plan_step(const Batch& batch);
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

  // Losses that are not finite (fit_nan.cpp). Whether callbacks are to hear of the step.
  bool accept_loss(double loss, const Begun& begun);
  void watch_loss_scale();
  void follow_policy();
  void keep_good_state();
  void warn(const std::string& message);

  template <class F>
  void for_callbacks(F&& f) {
    if (callbacks_.empty()) return;
    ScopedSpan span(track_, "callbacks", SpanKind::Host);
    const std::int64_t begin = now_ns() - session_.phases().ns();
    for (const CallbackRef& callback : callbacks_) f(*callback);
    const std::int64_t end = now_ns() - session_.phases().ns();
    history_.callback_seconds += static_cast<double>(end - begin) * 1e-9;
  }

  Model& model_;
  Model::Impl& impl_;
  Session& session_;
  Track& track_;
  const Dataset& batches_;
  const FitOptions& options_;
  std::vector<CallbackRef> callbacks_;
  AttributionMeter meter_;
  std::optional<PhaseScope> start_;  // until the first step
  History history_;

  Progress at_;  // without position and callbacks, which are asked for when they are needed
  std::unique_ptr<Iterator> iterator_;
  std::unique_ptr<Iterator> next_iterator_;  // of next_pass_, which has started early
  std::uint64_t next_pass_ = 0;
  bool prepared_ = false;
  std::int64_t given_in_pass_ = 0;        // batches of this pass, to tell an empty data set
  std::vector<std::int64_t> samples_of_;  // of each replica
  std::vector<std::int64_t> at_work_ns_;  // of each replica, when the step began
  std::int64_t samples_here_ = 0;         // samples of this epoch that this call trained on
  std::optional<Begun> begun_;            // the last step, where it has not ended
  std::int64_t ended_ns_ = 0;             // when a step ended last

  GoodState good_;
  std::int64_t good_epoch_ = 0;       // that it was taken in
  std::string trouble_;               // what the policy has to be followed for; empty: nothing
  std::int64_t forgiven_before_ = 0;  // steps that began before the last restore do not count
  struct {
    std::int64_t step = 0;     // when it was looked at last
    std::int64_t skipped = 0;  // steps until then
    std::int64_t stuck = 0;    // steps that were skipped one after the other at the least scale
    bool warned = false;       // in this epoch
    bool suspect = false;      // a loss was not finite: look at once
  } scale_;
};

// fit's and evaluate's: loss and metrics over a data set; the metrics stay as they were. Nothing
// where `interrupted` said so between two batches.
std::optional<Logs> evaluate_on(Model::Impl& impl, const Dataset& batches,
                                std::optional<std::int64_t> steps, const char* caller,
                                const std::function<bool()>& interrupted = {});

// UsageError where a data set never ends and nobody said how many steps to take.
void expect_an_end(const Dataset& batches, const std::optional<std::int64_t>& steps,
                   const char* caller, const char* option);

}  // namespace lockstep
