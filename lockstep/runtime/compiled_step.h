// CompiledStep: a traced step, ready to run on the ranks of this process. fit, evaluate, predict,
// functions of the user's own and bench all compile and run their steps here: one cache, one list
// of passes, one way to feed inputs, to read results and to recover from an error.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/distribute/pieces.h"
#include "lockstep/exec/executor.h"
#include "lockstep/runtime/session.h"

namespace lockstep {

// An input of a step on one rank, by its name in the graph.
struct StepInput {
  std::string name;
  ValueType type;
  bool operator==(const StepInput&) const = default;
};

// What a step is compiled for on one rank.
struct StepSignature {
  std::string variant = {};  // whatever else its trace depends on
  std::vector<StepInput> inputs = {};
  MicroForm form = MicroForm::Whole;
  bool operator==(const StepSignature&) const = default;
};

// The micro-batches of a step before its last one. Kinds of them are compiled, in this order, after
// the step itself; with several workers all have the same kinds.
struct MicroBatches {
  struct Turn {
    std::size_t kind = 0;
    std::vector<Piece> pieces;  // by local rank
  };
  std::vector<std::vector<StepSignature>> kinds = {};  // by local rank
  std::vector<Turn> turns = {};
  bool operator==(const MicroBatches&) const = default;
};

// What a step is compiled from.
struct StepSource {
  std::function<Graph(const StepSignature&)> trace;
  std::optional<DType> precision = {};  // the 16-bit type, in mixed precision
  MemoryOptions memory = {};
  std::string labels = {};               // the input that holds labels, if there is one
  Accumulators* accumulators = nullptr;  // of steps with micro-batches
  bool sum_outputs = true;               // over them
};

// The step of one rank: an executor with its inputs and outputs at hand.
class RankStep {
 public:
  // `classes` is the input that holds class numbers, if one does: floats in it must be whole.
  RankStep(StepSignature signature, std::unique_ptr<Executor> executor, const std::string& classes);

  const StepSignature& signature() const { return signature_; }
  const Plan& plan() const { return executor_->plan(); }
  Executor& executor() { return *executor_; }
  // Has the next run read an input, by its place in the signature, from the rows of `source` that
  // begin with `first_row`: in place where the device can, else from a copy. DataError, naming the
  // row, where a label that should name a class is not a whole number.
  void feed(std::size_t input, const Tensor& source, std::int64_t first_row = 0);
  // `step` and `first_row` are what the random numbers of this step depend on; `accumulated` is
  // whether a micro-batch of the same step was added up before.
  struct RunOptions {
    std::int64_t step = 0;
    std::int64_t first_row = 0;
    int rank = 0;
    bool accumulated = false;
    Inputs inputs = Inputs::Filled;
  };
  void run(const RunOptions& options);
  // An output, by its place in the graph, of a run (Executor::runs), which is waited for.
  Tensor output(std::size_t place, std::uint64_t run) const;
  std::size_t output_count() const { return outputs_.size(); }

 private:
  struct Input {
    Tensor memory;  // undefined where the step does not read it
    bool class_numbers = false;
  };

  StepSignature signature_;
  std::unique_ptr<Executor> executor_;
  std::vector<Input> inputs_;
  Tensor random_state_;
  Tensor rank_;
  Tensor accumulated_;
  std::vector<Tensor> outputs_;  // undefined where an output is a variable: read when asked for
};

// A step on all local ranks. A copy reads the results of the run that was the last one when it was
// made; they can be read until the step has run twice more.
struct CompiledStep {
  std::vector<RankStep*> ranks;     // by local rank
  std::vector<Piece> pieces;        // the rows of the global batch that each local rank works on
  std::vector<std::uint64_t> runs;  // the last run of each local rank
  // Before `ranks` run, which then have the rest of the rows.
  struct MicroBatch {
    std::vector<RankStep*> ranks;
    std::vector<Piece> pieces;
    std::vector<std::uint64_t> runs;
  };
  std::vector<MicroBatch> micro_batches = {};
  // Whether a micro-batch of the same step was added up in a run before (Accumulator).
  bool accumulated = false;
  bool planned = false;  // whether a rank's step had to be compiled for it
  // What every worker told about the last run: the scalars that come first among the outputs, of
  // each of its ranks. Empty where nothing was told.
  std::vector<std::string> told = {};

  // Calls feed(local rank, rank's step, its rows) on every local rank's thread and runs the step,
  // micro-batch by micro-batch. An error in the data names the rows. After an error all ranks have
  // the same variables again.
  //
  // A device that runs behind the host may still be at work on the step before. `between`, if
  // given, is then called by the calling thread as soon as the first micro-batch has been issued,
  // to finish that step: its errors would otherwise come to light in a later micro-batch of this
  // one. If one comes to light already while the first is issued, `between` gets it, and must
  // throw; otherwise it gets null.
  using Between = std::function<void(const DataError* error)>;
  template <class Feed>
  void run(Session& session, Feed&& feed, const Between& between = {}) {
    const auto fed = [&](int local, RankStep& step, const Piece& rows) {
      ScopedSpan span(session.track(local), "copy batch", SpanKind::Input);
      feed(local, step, rows);
    };
    run_turns(session, fed, Inputs::Filled, between);
  }
  // Runs with what was fed before.
  void run_again(Session& session) {
    run_turns(session, [](int, RankStep&, const Piece&) {}, Inputs::AsBefore, {});
  }

  // Whether it was compiled for these signatures, one per local rank.
  bool is_for(std::span<const StepSignature> signatures) const;
  // Waits until every local rank has run it.
  void wait() const;
  // The same where nobody asks for results any more, nor for what went wrong.
  void abandon() const noexcept;
  // An output of each local rank, in their order.
  std::vector<Tensor> outputs(std::size_t place) const;
  // A scalar output of every rank of the world, by rank.
  std::vector<double> values(Session& session, std::size_t place) const;
  // The same, added up.
  double sum(Session& session, std::size_t place) const;
  // An output with a row per sample: those of all ranks of the world, concatenated, in a new
  // tensor.
  Tensor all_rows(Session& session, std::size_t place) const;

  const Plan& plan() const { return ranks.front()->plan(); }
  // The plans of the first rank's micro-batches in the order in which they run, the last being
  // plan().
  std::vector<const Plan*> plans() const;
  // Of the rows in `pieces`, those of the last micro-batch.
  Piece last_rows(int local) const;

 private:
  using Feeding = std::function<void(int local, RankStep& step, const Piece& rows)>;
  void run_turns(Session& session, const Feeding& feed, Inputs inputs, const Between& between);
  // Micro-batches begin to end - 1 of a rank; the last one comes after all in micro_batches.
  void run_rank(Session& session, int local, const Feeding& feed, Inputs inputs, std::size_t begin,
                std::size_t end);
  void run_micro_batch(Session& session, int local, const Feeding& feed, Inputs inputs,
                       std::size_t turn);
  void wait_for_rank(std::size_t i) const;
  // How many of the first outputs are scalars that travel with the run's status.
  std::size_t told_outputs() const;
  std::string scalars() const;
};

// The steps compiled last, by rank and signature.
class StepCache {
 public:
  // The step for these signatures and pieces, one per local rank. It is valid until the next call.
  // Collective. `missing`: whether a worker has to compile it, where the workers have agreed on
  // that (holds); otherwise they do now.
  CompiledStep& get(Session& session, const StepSource& source,
                    std::span<const StepSignature> signatures, std::span<const Piece> pieces,
                    std::optional<bool> missing = {}, const MicroBatches& micro_batches = {});
  // Whether this worker has the steps for these signatures.
  bool holds(const Session& session, std::span<const StepSignature> signatures,
             const MicroBatches& micro_batches = {}) const;
  // Of the largest plan that it holds.
  std::size_t arena_bytes() const;
  void clear() { steps_.clear(); }
  // Whether what it holds was compiled for layouts that variables do not have any more.
  bool stale(const Session& session) const {
    return !steps_.empty() && layout_version_ != session.layout_version();
  }

 private:
  static constexpr std::size_t kMaxSteps = 8;  // per rank, and all that one step needs
  struct Entry {
    int rank;
    RankStep step;
  };
  RankStep* find(int rank, const StepSignature& signature);
  // The steps of these signatures, by local rank; null where they are missing.
  std::vector<RankStep*> find_all(std::span<const StepSignature> signatures);
  // Compiles those that are null.
  void compile_missing(Session& session, const StepSource& source,
                       std::span<const StepSignature> signatures, std::vector<RankStep*>& ranks);

  std::list<Entry> steps_;  // the one used last comes first
  CompiledStep step_;
  std::uint64_t layout_version_ = 0;
};

// DataError, naming the row and the label, where one is not a whole number that can name a class.
// Integers always can: whether they are in range is for the step to find out.
void expect_class_numbers(const Tensor& labels, std::int64_t first_row = 0);

}  // namespace lockstep
