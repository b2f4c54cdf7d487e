// The steps of a model: what fit, evaluate and predict trace, and how a batch is fed to them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/distribute/pieces.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/metric.h"
#include "lockstep/nn/network.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/passes/memory_options.h"
#include "lockstep/runtime/compiled_step.h"

namespace lockstep {

// Measure: the gradients of two halves of the batch, for the noise scale; nothing is changed.
enum class StepMode { Train, Evaluate, Predict, Measure };

// A step of a model for batches of given types.
struct ModelStep {
  StepMode mode = StepMode::Train;
  std::vector<ValueType> inputs;
  ValueType labels = {};  // not for Predict
  bool weighted = false;
  std::int64_t global_batch = 0;  // the loss scale is divided by it; 0 without a loss scale
  // Train, on several replicas: also outputs the norms of gradients. Everything else has the same
  // bits without them.
  bool norms = false;
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
  MemoryOptions memory = {};
  Accumulators* accumulators = nullptr;  // for steps of several micro-batches
};

// Inputs "x0", "x1", …, "y", "sample_weight"; outputs "loss_sum" and "weight" or, for Predict,
// "output0", …. Training and evaluation also update the metrics' variables. The regularisation loss
// is multiplied by the weight, so that the mean over any number of pieces counts it once.
Graph trace_step(const StepRecipe& recipe, const ModelStep& step);
// Indices of the first two outputs.
inline constexpr std::size_t kLossSumOutput = 0;
inline constexpr std::size_t kWeightOutput = 1;
// With `norms`, the next ones: the weight times the loss scale, the norm of this replica's sum of
// gradients, which is scaled likewise, and the norm of the all-reduced one.
inline constexpr std::size_t kScaledWeightOutput = 2;
inline constexpr std::size_t kOwnNormOutput = 3;
inline constexpr std::size_t kReducedNormOutput = 4;
// The outputs of Measure: the scaled weights of the two halves, the norms of their sums of
// gradients, and the norm of both together.
inline constexpr std::size_t kHalfWeightOutput = 0;  // and 1
inline constexpr std::size_t kHalfNormOutput = 2;    // and 3
inline constexpr std::size_t kWholeNormOutput = 4;
// The samples of the first half.
inline std::int64_t first_half(std::int64_t samples) {
  return (samples + 1) / 2;
}

// One batch on the host.
struct Batch {
  std::vector<Tensor> inputs;
  Tensor labels;
  Tensor sample_weight;

  // How many rows of the global batch each worker has, where a worker has its own only; empty where
  // these are all rows.
  std::vector<std::int64_t> rows_of_worker = {};
  std::int64_t first_row = 0;  // of the first one in the global batch

  std::int64_t size() const { return inputs.front().shape()[0]; }
  // Of all workers.
  std::int64_t global_size() const;
  ModelStep step(StepMode mode) const;
};

// What the local ranks compile and feed for a global batch that is split into these pieces, one per
// rank of the world.
struct StepRequest {
  ModelStep step;
  std::vector<StepSignature> signatures;  // by local rank
  std::vector<Piece> pieces;              // by local rank
  std::vector<Piece> all_pieces;          // by rank of the world
  // Where each piece is divided into micro-batches: all but the last, which `signatures` are of.
  MicroBatches micro_batches = {};
};
// `accumulate`: into how many micro-batches training divides each piece. Those that are empty on
// all ranks are left out.
StepRequest request_step(const World& world, const Optimizer& optimizer, ModelStep step,
                         std::span<const Piece> pieces, std::int64_t accumulate = 1);

// The same step with the norms of gradients.
StepRequest with_norms(StepRequest request);

// The pieces of a global batch of which each worker has these rows. If the rows are what the ranks
// of each worker have in an even split of the whole batch, that is the split; otherwise every
// worker splits its own rows evenly.
std::vector<Piece> split_workers_rows(const World& world, std::span<const std::int64_t> rows);

// `missing`: StepCache::get.
CompiledStep& compile_step(StepCache& cache, Session& session, const StepRecipe& recipe,
                           const StepRequest& request, std::optional<bool> missing = {});
// The plans that the local ranks would run; nothing is allocated (Session::plan).
struct StepPlans {
  std::vector<Plan> step;                // by local rank; of the last micro-batch, if there are any
  std::vector<std::vector<Plan>> kinds;  // of other micro-batches, by local rank
  std::vector<std::size_t> turns;        // the kinds in the order in which they run, before `step`

  // What a rank needs for all of them on its device.
  PlanBytes bytes_on(const Device& device, int local) const;
  // Of what a rank needs for variables, the part that is accumulators.
  std::size_t accumulator_bytes(int local) const;
};
StepPlans plan_step(Session& session, const StepRecipe& recipe, const StepRequest& request);
// Feeds every local rank its piece of the batch and runs the step. `between`: CompiledStep::run.
void run_step(CompiledStep& step, Session& session, const Batch& batch,
              const CompiledStep::Between& between = {});

// UsageError if the input and labels of an element are a single sample, not a batch.
void expect_batches(const char* caller, const Shape& input, const Shape& labels);

// Splits an element of a data set into x…, y, sample_weight. UsageError, naming `caller`, if the
// number of tensors, their batch sizes or the type of the weights is wrong.
Batch split_element(std::span<const Tensor> element, std::size_t input_count, StepMode mode,
                    const char* caller);

}  // namespace lockstep
