#include "lockstep/train/worker_batches.h"

#include "lockstep/runtime/world.h"
#include "lockstep/train/model_impl.h"
#include "lockstep/train/strategy_impl.h"

namespace lockstep {
namespace {

// Nothing where a worker reads everything that it is given.
std::optional<WorkerShare> share_of(ModelImpl& impl, const WorkerBatches& data) {
  const World& world = impl.session().world();
  const bool balanced =
      impl.options.strategy.defined() && impl_of(impl.options.strategy).balance == Balance::Auto;
  if (world.workers() == 1 || data.own_rows_only || balanced) return std::nullopt;
  return WorkerShare{.worker = world.worker(),
                     .workers = world.workers(),
                     .first_rank = world.rank(0),
                     .end_rank = world.rank(0) + world.local_size(),
                     .ranks = world.size()};
}

WorkerBatches with_share(WorkerBatches data, const WorkerShare& share) {
  data.share = share;
  data.share->policy = data.batches.resolve_policy(share);
  data.own_rows_only = true;
  return data;
}

}  // namespace

WorkerBatches training_share(ModelImpl& impl, WorkerBatches data) {
  const std::optional<WorkerShare> share = share_of(impl, data);
  return share ? with_share(std::move(data), *share) : data;
}

WorkerBatches evaluation_share(ModelImpl& impl, WorkerBatches data) {
  std::optional<WorkerShare> share = share_of(impl, data);
  if (!share || data.batches.options().auto_shard_policy == AutoShardPolicy::Off) return data;
  share->policy = AutoShardPolicy::Data;
  return with_share(std::move(data), *share);
}

}  // namespace lockstep
