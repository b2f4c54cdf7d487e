// FitRun: one call of fit. Everything that changes while it runs is here, so that an exception
// leaves the model as it was after the last complete step. Shared by the files that implement fit.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/runtime/steps_in_flight.h"
#include "lockstep/train/good_state.h"
#include "lockstep/train/model_impl.h"
#include "lockstep/train/noise_sampler.h"
#include "lockstep/train/run_profiler.h"
#include "lockstep/train/step_vote.h"
#include "lockstep/train/straggler.h"
#include "lockstep/train/survival.h"
#include "lockstep/train/worker_batches.h"

namespace lockstep {

class FitRun {
 public:
  FitRun(Model& model, const WorkerBatches& batches, const FitOptions& options, Survival& survival,
         RunProfiler& profiler);
  ~FitRun() {
    impl_.progress = nullptr;
    impl_.attribution = nullptr;
    impl_.attributed_seconds = nullptr;
    impl_.replica_attribution = nullptr;
    impl_.noise_scale = nullptr;
    impl_.stragglers = nullptr;
    impl_.last_snapshot = nullptr;
  }
  FitRun(const FitRun&) = delete;
  FitRun& operator=(const FitRun&) = delete;

  // With several workers, an error that ends this one's fit alone is reported to the others.
  // Nothing if another worker has failed and the rest go on: then history() tells what was done.
  std::optional<History> run();
  const History& history() const { return history_; }

 private:
  History run_epochs();
  void build_from_data();
  void set_batches();
  void resume();
  void go_on();
  void accept(const Progress& saved);
  // The callback that restores each saved state.
  std::vector<Callback*> takers_of(const std::vector<CallbackState>& states) const;
  void restore_callbacks();
  FitInfo info() const;
  std::vector<ReplicaTime> times_of_all_ranks() const;
  Progress progress() const;
  // Whether the caller asked fit to end; once true, it stays true.
  bool interrupted();
  // Whether fit is to end before the next epoch, by a callback or the caller; with several workers,
  // on any of them.
  bool asked_to_stop();
  // The chief's number: clocks of workers differ.
  double of_chief(double mine) const;
  // Whether every worker reads files of its own, so that positions are not those of all.
  bool reads_own_files() const {
    return data_.share && data_.share->policy == AutoShardPolicy::File;
  }
  // Goes on where workers stopped, however many there were.
  void restore_worker(const std::vector<std::string>& positions);

  // An epoch: its steps, on_epoch_trained, validation, and on_epoch_end.
  void run_epoch(std::int64_t epoch);
  Logs logs_of_steps(std::int64_t begin_ns, double train_seconds);
  // Adds the logs of the validation data; false if it was interrupted.
  bool validate(Logs& logs);
  // Evaluates one validation batch, so that unusable data is rejected before the first step.
  void check_validation();

  IteratorOptions iterator_options(std::uint64_t pass) const;
  void open_pass(std::uint64_t pass);
  void start_next_pass();
  // Keeps the pipeline's report; called at the end of a pass or of fit.
  void close_pass();
  bool steps_done() const;
  // The next element of this pass, which is opened if it is not; nothing at its end.
  std::optional<Element> next_of_pass();
  // Moves to the next pass; UsageError if this one had no batch.
  void end_pass();
  void expect_batches_in_pass() const;

  // What the next step trains on.
  struct Turn {
    std::optional<Element> element;                 // none: the epoch's steps are done
    std::optional<bool> sync = {};                  // whether callbacks need it, if that was agreed
    bool compiled = false;                          // all workers have the step for the same pieces
    std::optional<bool> measured = {};              // whether to sample the noise scale, if agreed
    std::vector<std::int64_t> rows_of_worker = {};  // where a worker has its own rows only
  };
  // Nothing if fit is to end now.
  std::optional<Turn> next_turn();
  // The same with several workers, which agree on it (fit_workers.cpp).
  std::optional<Turn> agree_on_turn();
  StepVote vote(std::optional<Element>& element);
  // How long the workers were busy with the step before.
  void observe_workers(const StepVotes& votes);
  std::uint64_t callbacks_due();

  bool run_steps();  // of an epoch; false if it was stopped
  // Traces and plans the first step and then checks the validation data: the order matters because
  // the training plan decides the layout of variables. Returns whether a step was planned.
  bool prepare(const StepRequest& request);
  CompiledStep& plan_step(const StepRequest& request, std::optional<bool> missing = {});
  // Runs a step and finishes it or, if the host runs ahead of the device, the previous one.
  void train(const Turn& turn);
  std::int64_t busy_ns(int replica) const;
  void observe(const StepRequest& request);
  std::vector<double> gather_numbers(std::span<const double> mine) const;
  void check_replicas();
  bool callbacks_need_sync(std::int64_t epoch_step);
  [[noreturn]] void fail_at_step(std::int64_t epoch_step, const DataError& error) const;

  // What finish needs to know about a step.
  struct StepInfo {
    bool planned = false;     // it first had to be planned
    std::int64_t number = 0;  // from the beginning of training
    std::int64_t epoch_step = 0;
    std::int64_t samples = 0;
    std::int64_t samples_in_epoch = 0;
    std::int64_t begin_ns = 0;
    bool sampled = false;  // for the noise scale
    bool norms = false;    // its outputs have the norms of gradients
  };
  void finish(const CompiledStep& step, const StepInfo& info);

  // The noise scale (fit_noise.cpp).
  bool noise_due() const;
  bool samples_noise(const Turn& turn, const StepRequest& plain) const;
  CompiledStep& plan_with_norms(const StepRequest& plain);
  void add_noise_sample(const CompiledStep& step);
  bool may_take_memory_for(const StepRequest& request);
  void measure_halves(const Batch& whole, const StepRequest& plain);
  void note_step_time(const StepInfo& info);

  // Handles losses that are not finite (fit_nan.cpp). Returns whether callbacks see the step.
  bool accept_loss(double loss, const StepInfo& info);
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
  ModelImpl& impl_;
  Session& session_;
  Track& track_;
  const WorkerBatches data_;
  const Dataset& batches_;  // of data_
  const FitOptions& options_;
  std::vector<CallbackRef> callbacks_;
  Survival& survival_;
  RunProfiler& profiler_;
  std::optional<PhaseScope> start_;  // before the first step
  History history_;

  Progress at_;  // without position and callbacks, which are read only when needed
  std::unique_ptr<Iterator> iterator_;
  std::unique_ptr<Iterator> next_iterator_;  // of next_pass_, started early
  std::uint64_t next_pass_ = 0;
  bool prepared_ = false;
  bool recovered_ = false;                // goes on from a copy
  std::int64_t given_in_pass_ = 0;        // batches of this pass, to detect an empty data set
  std::vector<std::int64_t> samples_of_;  // of each replica
  std::vector<std::int64_t> busy_ns_;     // of each replica, when the step began
  std::int64_t samples_here_ = 0;         // samples of this epoch that this call trained on
  std::int64_t input_ns_ = 0;             // that this worker waited for its batch
  double busy_s_ = -1;                    // with the last step, for the next vote
  StragglerWatch stragglers_;
  StepsInFlight<StepInfo> in_flight_;
  std::int64_t ended_ns_ = 0;   // when the last step ended
  std::int64_t phases_ns_ = 0;  // that phases had taken by then
  NoiseSampler noise_;
  std::vector<Piece> noise_pieces_;     // of the last step that was sampled
  std::optional<double> step_ended_s_;  // on the clock of note_step_time
  // Of the last step: the next one is expected to be like it. With one worker only the pieces.
  struct {
    std::vector<ValueType> types;
    std::vector<StepSignature> signatures;
    MicroBatches micro_batches;
    std::vector<Piece> pieces;
  } last_;

  GoodState good_;
  std::int64_t good_epoch_ = 0;       // in which it was copied
  std::string trouble_;               // the reason to apply on_nan; empty: none
  std::int64_t forgiven_before_ = 0;  // steps before the last restore do not count
  struct {
    std::int64_t step = 0;     // when it was last checked
    std::int64_t skipped = 0;  // steps skipped by then
    std::int64_t stuck = 0;    // consecutive steps skipped at the smallest scale
    bool warned = false;       // in this epoch
    bool suspect = false;      // a loss was not finite: check at once
  } scale_;
};

// For fit and evaluate: loss and metrics over a data set; the metrics' state is left as it was.
// Returns nothing if `interrupted` returned true between two batches.
std::optional<Logs> evaluate_on(ModelImpl& impl, const WorkerBatches& batches,
                                std::optional<std::int64_t> steps, const char* caller,
                                const std::function<bool()>& interrupted = {});

// What Model::fit, evaluate and predict do.
History fit_model(Model& model, const WorkerBatches& batches, const FitOptions& options);
Logs evaluate_model(const Model& model, const WorkerBatches& batches,
                    const EvaluateOptions& options);
std::vector<Tensor> predict_model(const Model& model, const WorkerBatches& batches,
                                  const PredictOptions& options);

// UsageError if the data set is infinite and the number of steps is not given.
void expect_an_end(const Dataset& batches, const std::optional<std::int64_t>& steps,
                   const char* caller, const char* option);

}  // namespace lockstep
