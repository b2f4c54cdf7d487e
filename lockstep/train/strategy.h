// Strategies: which devices train a model, and how its replicas work together. Names follow
// tf.distribute, but there is no scope to enter: pass the strategy to compile, or make a function
// with it.
//
//   ls::MirroredStrategy strategy({.devices = {"cpu:0", "cpu:1"}});
//   model.compile({.strategy = strategy, .optimizer = ls::Adam(), .loss = …});
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/distribute/balance.h"
#include "lockstep/distribute/buckets.h"
#include "lockstep/kernels/cuda_options.h"
#include "lockstep/train/per_replica.h"

namespace lockstep {

class Dataset;
class Function;
struct FunctionOptions;
struct StrategyImpl;
class DistributedBatches;
template <std::size_t Parts>
class DistributedDataset;

// The argument of a function that makes a worker's data set, as in tf.distribute.
struct InputContext {
  int num_input_pipelines = 1;
  int input_pipeline_id = 0;
  int num_replicas_in_sync = 1;
  // The global batch size divided by the number of replicas; UsageError if it is not divisible.
  std::int64_t per_replica_batch_size(std::int64_t global_batch_size) const;
};

// A handle: copies refer to the same strategy.
class Strategy {
 public:
  Strategy() = default;
  bool defined() const { return impl_ != nullptr; }

  int num_replicas_in_sync() const;
  std::vector<std::string> devices() const;

  // A user-defined step, traced once per signature and run on every replica (function.h). The
  // models whose variables it uses move to this strategy's devices.
  template <class F>
  Function function(F f) const;
  template <class F>
  Function function(F f, const FunctionOptions& options) const;
  // Runs it, each replica with its own arguments (a plain tensor goes to all of them), and returns
  // its result. Use run_all for a function with several results.
  template <class... Arguments>
  PerReplica run(Function& f, const Arguments&... arguments) const;
  std::vector<PerReplica> run_all(Function& f, const std::vector<PerReplica>& arguments) const;

  // Splits global batches of `Parts` tensors evenly over the replicas (distributed.h):
  //   for (auto& [images, labels] : strategy.distribute(batches)) …
  template <std::size_t Parts = 2>
  DistributedDataset<Parts> distribute(const Dataset& batches) const;
  // The same for per-replica batches, which are handed to the replicas whole. With several workers,
  // each calls f with its own context.
  template <std::size_t Parts = 2>
  DistributedDataset<Parts> distribute_from_function(
      const std::function<Dataset(const InputContext&)>& f) const;

  InputContext input_context() const;

  // One value from those of all replicas. With several workers, all of them must call it.
  Reduced reduce(ReduceOp op, const PerReplica& values,
                 const ReduceValuesOptions& options = {}) const;
  Tensor gather(const PerReplica& values, int axis = 0) const;

 protected:
  explicit Strategy(StrategyImpl impl);

 private:
  friend const StrategyImpl& impl_of(const Strategy& strategy);  // strategy_impl.h
  std::shared_ptr<const StrategyImpl> impl_;
};

struct MirroredOptions {
  // "cuda:0", "cuda:1": GPUs, one replica each; "cuda:0/0", "cuda:0/1": replicas that share a GPU,
  // for trying things out. "cpu:0", "cpu:1": logical devices that split the machine's cores.
  // None: all GPUs; on a machine without GPUs, one replica on all cores.
  std::vector<std::string> devices = {};
  // The number of logical devices that the cores are split into; 0: as many as the names need.
  // Without names, the only replica gets the first of them.
  int logical_cpus = 0;
  // Auto: the pieces of a batch are sized by the measured speed of each replica.
  Balance balance = Balance::Even;
  // Sizes of the gradient buckets; 0: chosen from measured latency and bandwidth.
  BucketSizes buckets = {};
  // Compares the variables of all replicas bit by bit at this interval of steps; 0: never.
  std::int64_t check_replicas_every = 0;
  // How long a replica waits for another before it fails.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  // For GPUs: whether f32 products may use TF32, and where autotuned algorithms are stored.
  CudaKernelOptions cuda = {};
};

// Device names as an argument: {"cpu:0", "cpu:1"}.
struct DeviceNames {
  template <std::convertible_to<std::string>... Name>
  requires(sizeof...(Name) > 0) DeviceNames(const Name&... names) : values{names...} {}  // NOLINT
  DeviceNames(std::vector<std::string> names) : values(std::move(names)) {}              // NOLINT
  std::vector<std::string> values;
};

// One model on several devices of one machine: each replica computes the gradients of its piece of
// every batch, they are all-reduced, and all replicas apply the same update.
struct MirroredStrategy : Strategy {
  explicit MirroredStrategy(MirroredOptions options = {});
  explicit MirroredStrategy(DeviceNames devices, MirroredOptions options = {});
};

struct OneDeviceOptions {
  std::string device = "cpu:0";
  int logical_cpus = 0;
};

// Everything on one device.
struct OneDeviceStrategy : Strategy {
  explicit OneDeviceStrategy(OneDeviceOptions options = {});
  template <std::convertible_to<std::string> Text>
  explicit OneDeviceStrategy(const Text& device, OneDeviceOptions options = {})
      : OneDeviceStrategy(
            OneDeviceOptions{.device = device, .logical_cpus = options.logical_cpus}) {}
};

}  // namespace lockstep
