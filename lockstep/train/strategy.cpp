#include "lockstep/train/strategy.h"

#include "lockstep/base/error.h"
#include "lockstep/device/cuda/cuda_device.h"
#include "lockstep/train/function.h"
#include "lockstep/train/replicas.h"

namespace lockstep {
namespace {

std::shared_ptr<Replicas> make_replicas(const MirroredOptions& options) {
  require(options.logical_cpus >= 0, "[strategy] logical_cpus is {}; it must not be negative",
          options.logical_cpus);
  if (options.devices.empty() && options.logical_cpus == 0) {
    const GpuInventory inventory = find_gpus();
    if (!inventory.gpus.empty()) {
      ReplicaOptions replicas{
          .buckets = options.buckets, .timeout = options.timeout, .cuda = options.cuda};
      for (const Gpu& gpu : inventory.gpus) {
        replicas.devices.push_back(fmt::format("cuda:{}", gpu.index));
      }
      return std::make_shared<Replicas>(replicas);
    }
  }
  // Alone on all cores there is nothing that a thread of its own would be good for.
  const bool alone =
      options.devices.empty() || options.devices == std::vector<std::string>{"cpu:0"};
  if (alone && options.logical_cpus <= 1) return std::make_shared<Replicas>(nullptr);
  return std::make_shared<Replicas>(ReplicaOptions{.devices = options.devices,
                                                   .logical_cpus = options.logical_cpus,
                                                   .buckets = options.buckets,
                                                   .timeout = options.timeout,
                                                   .cuda = options.cuda});
}

MirroredOptions with_devices(std::vector<std::string> devices, MirroredOptions options) {
  require(options.devices.empty(),
          "[strategy] devices are given twice, as an argument and by name");
  options.devices = std::move(devices);
  return options;
}

}  // namespace

int Strategy::num_replicas_in_sync() const {
  require(defined(), "[strategy] this strategy is empty: make one, such as MirroredStrategy()");
  return impl_->replicas->size();
}

std::vector<std::string> Strategy::devices() const {
  require(defined(), "[strategy] this strategy is empty: make one, such as MirroredStrategy()");
  return impl_->replicas->names();
}

Reduced Strategy::reduce(ReduceOp op, const PerReplica& values,
                         const ReduceValuesOptions& options) const {
  return reduce_values(op, values, num_replicas_in_sync(), options);
}

Tensor Strategy::gather(const PerReplica& values, int axis) const {
  return gather_values(values, axis);
}

std::vector<PerReplica> Strategy::run_all(Function& f,
                                          const std::vector<PerReplica>& arguments) const {
  return f.run_on_replicas(*this, arguments);
}

std::int64_t InputContext::per_replica_batch_size(std::int64_t global_batch_size) const {
  require(global_batch_size % num_replicas_in_sync == 0,
          "[distribute] a global batch of {} does not divide over {} replicas", global_batch_size,
          num_replicas_in_sync);
  return global_batch_size / num_replicas_in_sync;
}

MirroredStrategy::MirroredStrategy(MirroredOptions options)
    : Strategy({.replicas = make_replicas(options),
                .balance = options.balance,
                .check_replicas_every = options.check_replicas_every}) {}

MirroredStrategy::MirroredStrategy(DeviceNames devices, MirroredOptions options)
    : MirroredStrategy(with_devices(std::move(devices.values), std::move(options))) {}

OneDeviceStrategy::OneDeviceStrategy(OneDeviceOptions options)
    : Strategy({.replicas = make_replicas(
                    {.devices = {options.device}, .logical_cpus = options.logical_cpus})}) {}

}  // namespace lockstep
