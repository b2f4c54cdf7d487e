#include "lockstep/train/strategy.h"

#include <cstring>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/device/cuda/cuda_device.h"
#include "lockstep/train/function.h"
#include "lockstep/train/strategy_impl.h"

namespace lockstep {
namespace {

std::shared_ptr<World> make_world(const MirroredOptions& options) {
  require(options.logical_cpus >= 0, "[strategy] logical_cpus is {}; it must not be negative",
          options.logical_cpus);
  if (options.devices.empty() && options.logical_cpus == 0) {
    const GpuInventory inventory = find_gpus();
    if (!inventory.gpus.empty()) {
      WorldOptions world{
          .buckets = options.buckets, .timeout = options.timeout, .cuda = options.cuda};
      for (const Gpu& gpu : inventory.gpus) {
        world.devices.push_back(fmt::format("cuda:{}", gpu.index));
      }
      return std::make_shared<World>(world);
    }
  }
  // A single replica on all cores does not need a thread of its own.
  const bool alone =
      options.devices.empty() || options.devices == std::vector<std::string>{"cpu:0"};
  if (alone && options.logical_cpus <= 1) return std::make_shared<World>(nullptr);
  return std::make_shared<World>(WorldOptions{.devices = options.devices,
                                              .logical_cpus = options.logical_cpus,
                                              .buckets = options.buckets,
                                              .timeout = options.timeout,
                                              .cuda = options.cuda});
}

// A tensor as bytes: its shape, then its elements.
std::string encode(const Tensor& tensor) {
  std::string bytes = fmt::format("{}\n", fmt::join(tensor.shape().dims(), " "));
  bytes.append(reinterpret_cast<const char*>(tensor.raw()), tensor.bytes());
  return bytes;
}

// Decodes a tensor from the front of the bytes and removes it.
Tensor decode(DType dtype, std::string_view& bytes) {
  const std::size_t end = bytes.find('\n');
  std::istringstream text{std::string(bytes.substr(0, end))};
  std::vector<std::int64_t> dims;
  for (std::int64_t dim = 0; text >> dim;) dims.push_back(dim);
  Tensor tensor(dtype, Shape(std::move(dims)));
  if (tensor.bytes() > 0) std::memcpy(tensor.raw(), bytes.data() + end + 1, tensor.bytes());
  bytes.remove_prefix(end + 1 + tensor.bytes());
  return tensor;
}

// The tensors of all workers' replicas, in the order of the replicas.
std::vector<Tensor> of_all_ranks(World& world, const std::vector<Tensor>& mine) {
  if (mine.empty()) return {};
  std::string bytes;
  for (const Tensor& value : mine) bytes += encode(value);
  std::vector<Tensor> all;
  for (const std::string& theirs : world.exchange(bytes)) {
    for (std::string_view rest = theirs; !rest.empty();) {
      all.push_back(decode(mine.front().dtype(), rest));
    }
  }
  return all;
}

PerReplica of_all_ranks(World& world, const PerReplica& values) {
  if (world.local_size() == world.size() || !values.defined() || values.shared()) return values;
  return PerReplica(of_all_ranks(world, values.values()), of_all_ranks(world, values.weights()));
}

MirroredOptions with_devices(std::vector<std::string> devices, MirroredOptions options) {
  require(options.devices.empty(),
          "[strategy] devices are given twice, as an argument and by name");
  options.devices = std::move(devices);
  return options;
}

}  // namespace

Strategy::Strategy(StrategyImpl impl)
    : impl_(std::make_shared<const StrategyImpl>(std::move(impl))) {}

const StrategyImpl& impl_of(const Strategy& strategy) {
  return *strategy.impl_;
}

int Strategy::num_replicas_in_sync() const {
  require(defined(), "[strategy] this strategy is empty: make one, such as MirroredStrategy()");
  return impl_->world->size();
}

std::vector<std::string> Strategy::devices() const {
  require(defined(), "[strategy] this strategy is empty: make one, such as MirroredStrategy()");
  return impl_->world->names();
}

Reduced Strategy::reduce(ReduceOp op, const PerReplica& values,
                         const ReduceValuesOptions& options) const {
  require(defined(), "[strategy] this strategy is empty: make one, such as MirroredStrategy()");
  return reduce_values(op, of_all_ranks(*impl_->world, values), num_replicas_in_sync(), options);
}

Tensor Strategy::gather(const PerReplica& values, int axis) const {
  require(defined(), "[strategy] this strategy is empty: make one, such as MirroredStrategy()");
  return gather_values(of_all_ranks(*impl_->world, values), axis);
}

std::vector<PerReplica> Strategy::run_all(Function& f,
                                          const std::vector<PerReplica>& arguments) const {
  return f.run_on_replicas(*this, arguments);
}

InputContext Strategy::input_context() const {
  require(defined(), "[strategy] this strategy is empty: make one, such as MirroredStrategy()");
  return {.num_input_pipelines = impl_->world->workers(),
          .input_pipeline_id = impl_->world->worker(),
          .num_replicas_in_sync = impl_->world->size()};
}

std::int64_t InputContext::per_replica_batch_size(std::int64_t global_batch_size) const {
  require(global_batch_size % num_replicas_in_sync == 0,
          "[distribute] a global batch of {} does not divide over {} replicas", global_batch_size,
          num_replicas_in_sync);
  return global_batch_size / num_replicas_in_sync;
}

MirroredStrategy::MirroredStrategy(MirroredOptions options)
    : Strategy({.world = make_world(options),
                .balance = options.balance,
                .check_replicas_every = options.check_replicas_every}) {}

MirroredStrategy::MirroredStrategy(DeviceNames devices, MirroredOptions options)
    : MirroredStrategy(with_devices(std::move(devices.values), std::move(options))) {}

OneDeviceStrategy::OneDeviceStrategy(OneDeviceOptions options)
    : Strategy({.world = make_world(
                    {.devices = {options.device}, .logical_cpus = options.logical_cpus})}) {}

}  // namespace lockstep
