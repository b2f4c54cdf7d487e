// Strategies: on which devices a model is trained, and how its copies work together. Names follow
// tf.distribute; there is no scope to enter: a strategy is handed to compile, or asked for a
// function.
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

#include "lockstep/kernels/kernel.h"
#include "lockstep/strategy/balance.h"
#include "lockstep/strategy/buckets.h"
#include "lockstep/train/per_replica.h"

namespace lockstep {

class Dataset;
class Function;
struct FunctionOptions;
class Replicas;
class Session;
class DistributedBatches;
template <std::size_t Parts>
class DistributedDataset;

// What a function that makes the data set of a worker is told, as tf.distribute tells it.
struct InputContext {
  int num_input_pipelines = 1;
  int input_pipeline_id = 0;
  int num_replicas_in_sync = 1;
  // The batch of a replica where this is the global one; UsageError where it does not divide.
  std::int64_t per_replica_batch_size(std::int64_t global_batch_size) const;
};

// A handle; copies are the same strategy.
class Strategy {
 public:
  Strategy() = default;
  bool defined() const { return impl_ != nullptr; }

  int num_replicas_in_sync() const;
  std::vector<std::string> devices() const;

  // A step of the user's own, traced once for each signature and run on every replica (function.h).
  // The models whose variables it uses then live on this strategy's devices.
  template <class F>
  Function function(F f) const;
  template <class F>
  Function function(F f, const FunctionOptions& options) const;
  // Runs it, each replica with its own arguments (a plain tensor: all with the same), and gives its
  // result; run_all for a function with several.
  template <class... Arguments>
  PerReplica run(Function& f, const Arguments&... arguments) const;
  std::vector<PerReplica> run_all(Function& f, const std::vector<PerReplica>& arguments) const;

  // Splits batches of the global size evenly over the replicas (distributed.h), `Parts` tensors
  // each:
  //   for (auto& [images, labels] : strategy.distribute(batches)) …
  template <std::size_t Parts = 2>
  DistributedDataset<Parts> distribute(const Dataset& batches) const;
  // The same for batches of the size of a replica, which are dealt out as they are.
  template <std::size_t Parts = 2>
  DistributedDataset<Parts> distribute_from_function(
      const std::function<Dataset(const InputContext&)>& f) const;

  // One value from those of the replicas.
  Reduced reduce(ReduceOp op, const PerReplica& values,
                 const ReduceValuesOptions& options = {}) const;
  Tensor gather(const PerReplica& values, int axis = 0) const;

  struct Impl {
    std::shared_ptr<Replicas> replicas;
    Balance balance = Balance::Even;
    std::int64_t check_replicas_every = 0;
    mutable std::shared_ptr<Session> session = {};  // of its functions
  };
  const Impl& impl() const { return *impl_; }

 protected:
  explicit Strategy(Impl impl) : impl_(std::make_shared<const Impl>(std::move(impl))) {}

 private:
  std::shared_ptr<const Impl> impl_;
};

struct MirroredOptions {
  // "cuda:0", "cuda:1": GPUs, a replica each; "cuda:0/0", "cuda:0/1": replicas that share one, to
  // try things out. "cpu:0", "cpu:1": logical devices that split the machine's cores between them.
  // None: every GPU there is; on a machine without GPUs one replica on all cores.
  std::vector<std::string> devices = {};
  // Into how many logical devices the cores are split; 0: as the names need. Without names the one
  // replica gets the first of them.
  int logical_cpus = 0;
  // Auto: pieces of a batch follow the measured speed of each replica.
  Balance balance = Balance::Even;
  // Sizes of what gradients travel in; 0: from measured latency and bandwidth.
  BucketSizes buckets = {};
  // Compares the variables of all replicas, bit by bit, every so many training steps; 0: never.
  std::int64_t check_replicas_every = 0;
  // How long a replica waits for another one before it gives up.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  // Of GPUs: whether f32 products may take TF32, and where measured choices of algorithms are kept.
  CudaKernelOptions cuda = {};
};

// Names of devices as an argument: {"cpu:0", "cpu:1"}.
struct DeviceNames {
  template <std::convertible_to<std::string>... Name>
  requires(sizeof...(Name) > 0) DeviceNames(const Name&... names) : values{names...} {}  // NOLINT
  DeviceNames(std::vector<std::string> names) : values(std::move(names)) {}              // NOLINT
  std::vector<std::string> values;
};

// One model on several devices of a machine: each replica works on its piece of every batch,
// gradients are added up, and all make the same step.
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
