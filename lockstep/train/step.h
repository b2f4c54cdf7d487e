// A step of fit, evaluate or predict: the graph that is traced for an input signature, the executor
// that runs it, and a small cache of them.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/exec/executor.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/metric.h"
#include "lockstep/nn/network.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/strategy/share.h"
#include "lockstep/train/session.h"

namespace lockstep {

enum class StepMode { Train, Evaluate, Predict };

struct StepSignature {
  StepMode mode = StepMode::Train;
  std::vector<ValueType> inputs;
  ValueType labels;  // not of Predict
  bool weighted = false;
  std::int64_t global_batch = 0;  // of training with a loss scale, which is divided by it; else 0
  bool operator==(const StepSignature&) const = default;
};

// What a step is traced from.
struct StepRecipe {
  Network& network;
  const Loss& loss;
  const Optimizer& optimizer;
  const Metric& loss_mean;
  std::span<const Metric> metrics;
  std::span<const Metric> weighted_metrics;
  std::uint64_t seed = 0;
  std::optional<DType> precision = {};  // the 16-bit type, in mixed precision
};

// Inputs "x0", "x1", …, "y", "sample_weight"; outputs "loss_sum" and "weight", or, of Predict,
// "output0", …. Training and evaluation also add to the metrics' variables. Regularisation enters
// as weight times its loss, so that the mean over any number of pieces counts it once.
Graph trace_step(const StepRecipe& recipe, const StepSignature& signature);

// One batch on the host.
struct Batch {
  std::vector<Tensor> inputs;
  Tensor labels;
  Tensor sample_weight;

  std::int64_t size() const { return inputs.front().shape()[0]; }
};

// The step of one replica: an executor with its inputs and outputs at hand.
class ReplicaStep {
 public:
  // `class_numbers`: the labels name classes, so that floats must be whole.
  ReplicaStep(StepSignature signature, std::unique_ptr<Executor> executor,
              bool class_numbers = false);

  const StepSignature& signature() const { return signature_; }
  const Plan& plan() const { return executor_->plan(); }
  Executor& executor() { return *executor_; }
  // Lends or copies this replica's piece of a batch. DataError, naming the row of the batch, for a
  // label that should name a class and is no whole number.
  void feed(const Batch& batch, const Piece& piece);
  // `step` and `first_row`: what the random numbers of this step depend on.
  void run(std::int64_t step, std::int64_t first_row, int replica, Inputs inputs);
  // Of a run, by its number (Executor::runs); each waits until it is over.
  double loss_sum(std::uint64_t run) const { return read(loss_sum_, run); }
  double weight(std::uint64_t run) const { return read(weight_, run); }
  const std::vector<Tensor>& outputs(std::uint64_t run) const {
    executor_->wait(run);
    return outputs_;
  }

 private:
  double read(const Tensor& result, std::uint64_t run) const {
    executor_->wait(run);
    return result.item();
  }
  void put(const char* name, Tensor& input, const Tensor& source, const Piece& piece);

  StepSignature signature_;
  std::unique_ptr<Executor> executor_;
  bool class_numbers_;
  std::vector<Tensor> inputs_;  // not defined where the step does not read one
  Tensor labels_;
  Tensor sample_weight_;
  Tensor random_state_;
  Tensor replica_;
  Tensor loss_sum_;
  Tensor weight_;
  std::vector<Tensor> outputs_;
};

// The step of a batch on all replicas, each on its piece. A copy reads the results of the run that
// was the last when it was made; until the step has run twice more, or another one was made.
struct Step {
  std::vector<ReplicaStep*> replicas;
  std::vector<Piece> pieces;
  std::vector<std::uint64_t> runs;  // the last run of each replica
  bool planned = false;             // whether a replica's step had to be made

  // Feeds every replica its piece and runs it; an error in the data says which rows it is about.
  void run(Session& session, const Batch& batch);
  // Runs with what was fed before.
  void run_again(Session& session);
  // Whether a batch has its shapes, so that the same step is run for it.
  bool fits(const Batch& batch) const;
  // Until every replica has run it.
  void wait() const;
  // The same where nobody asks for results any more, nor for what went wrong.
  void forget() const noexcept;
  double loss_sum() const;
  double weight() const;
  // The outputs of the whole batch: those of the pieces one behind the other, copied.
  std::vector<Tensor> outputs() const;
  const Plan& plan() const { return replicas.front()->plan(); }
  std::size_t peak_bytes() const;  // of the replica that needs most

 private:
  void run_piece(Session& session, int replica, Inputs inputs);
  template <class F>
  void run_together(Session& session, F&& f);
};

// The steps made last, by replica and signature.
class StepCache {
 public:
  // The step for a batch in these pieces. It is valid until the next call.
  Step& get(Session& session, const StepRecipe& recipe, const StepSignature& whole,
            std::span<const Piece> pieces);
  void clear() { steps_.clear(); }

 private:
  static constexpr std::size_t kMost = 8;  // of each replica
  struct Made {
    int replica;
    ReplicaStep step;
  };
  ReplicaStep* find(int replica, const StepSignature& signature);

  std::list<Made> steps_;  // the one used last in front
  Step step_;
  std::uint64_t generation_ = 0;
};

// DataError, naming the row and the label, where one is not a whole number that can name a class.
// Integers always can: whether they are in range is for the step to find out.
void expect_class_numbers(const Tensor& labels, std::int64_t first_row = 0);

// UsageError where an input and the labels of an element are those of a single sample.
void expect_batches(const char* caller, const Shape& input, const Shape& labels);

// The parts of an element of a data set: x…, y, sample_weight. UsageError, naming `caller`, where
// their number, their batch sizes or the weights' type do not fit.
Batch split_element(std::span<const Tensor> element, std::size_t input_count, StepMode mode,
                    const char* caller);

}  // namespace lockstep
