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
#include "lockstep/runtime/compiled_step.h"

namespace lockstep {

enum class StepMode { Train, Evaluate, Predict };

// A step of a model for batches of given types.
struct ModelStep {
  StepMode mode = StepMode::Train;
  std::vector<ValueType> inputs;
  ValueType labels = {};  // not for Predict
  bool weighted = false;
  std::int64_t global_batch = 0;  // the loss scale is divided by it; 0 without a loss scale
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

// Inputs "x0", "x1", …, "y", "sample_weight"; outputs "loss_sum" and "weight" or, for Predict,
// "output0", …. Training and evaluation also update the metrics' variables. The regularisation loss
// is multiplied by the weight, so that the mean over any number of pieces counts it once.
Graph trace_step(const StepRecipe& recipe, const ModelStep& step);
// Indices of the first two outputs.
inline constexpr std::size_t kLossSumOutput = 0;
inline constexpr std::size_t kWeightOutput = 1;

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
};
StepRequest request_step(const World& world, const Optimizer& optimizer, ModelStep step,
                         std::span<const Piece> pieces);

// The pieces of a global batch of which each worker has these rows. If the rows are what the ranks
// of each worker have in an even split of the whole batch, that is the split; otherwise every
// worker splits its own rows evenly.
std::vector<Piece> split_workers_rows(const World& world, std::span<const std::int64_t> rows);

// `missing`: StepCache::get.
CompiledStep& compile_step(StepCache& cache, Session& session, const StepRecipe& recipe,
                           const StepRequest& request, std::optional<bool> missing = {});
// The plans that the local ranks would run; nothing is allocated (Session::plan).
std::vector<Plan> plan_step(Session& session, const StepRecipe& recipe, const StepRequest& request);
// Feeds every local rank its piece of the batch and runs the step.
void run_step(CompiledStep& step, Session& session, const Batch& batch);

// UsageError if the input and labels of an element are a single sample, not a batch.
void expect_batches(const char* caller, const Shape& input, const Shape& labels);

// Splits an element of a data set into x…, y, sample_weight. UsageError, naming `caller`, if the
// number of tensors, their batch sizes or the type of the weights is wrong.
Batch split_element(std::span<const Tensor> element, std::size_t input_count, StepMode mode,
                    const char* caller);

}  // namespace lockstep
