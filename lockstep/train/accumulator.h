// Accumulator: a user-defined training step over several micro-batches, whose gradients are added
// up before one all-reduce and one update. Its body is that of any other step:
//
//   ls::Accumulator step(strategy, [&](ls::Value images, ls::Value labels) {
//     const ls::LossPair loss = …;
//     optimizer.apply(ls::gradients(loss, model.trainable_variables()));
//     return loss;
//   });
//   for (auto& [images, labels] : strategy.distribute(micro_batches)) {
//     const bool last = …;  // of a step
//     last ? step.update(images, labels) : step.add(images, labels);
//   }
//
// A step over micro-batches of any sizes equals one on the batch that they are together: gradients
// are sums with their weight, divided once. Random numbers are those of that batch. Batch norm has
// the statistics of each micro-batch, and its moving averages are updated once, with their mean:
// accumulating equals as many replicas. In f16, one overflow skips the whole update, once.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/train/function.h"

namespace lockstep {

class Accumulator {
 public:
  // The body must call Optimizer::apply; it is traced for both kinds of runs. See Function.
  template <class F>
  Accumulator(const Strategy& strategy, F body, const FunctionOptions& options = {})
      : strategy_(strategy),
        function_(strategy, std::move(body), options),
        accumulators_(std::make_unique<Accumulators>()) {}

  // Runs the body on a micro-batch and adds up its gradients. Nothing is communicated, and no
  // parameter changes. Returns the result of the body, for this micro-batch. As Strategy::run: each
  // argument is one value per replica.
  template <class... Arguments>
  PerReplica add(const Arguments&... arguments) {
    return only(add_all({PerReplica(arguments)...}));
  }
  // The same on the last micro-batch of a step, and the update with all gradients since the last
  // one.
  template <class... Arguments>
  PerReplica update(const Arguments&... arguments) {
    return only(update_all({PerReplica(arguments)...}));
  }
  // The same for bodies with several results.
  std::vector<PerReplica> add_all(const std::vector<PerReplica>& arguments) {
    return run(arguments, MicroForm::Add);
  }
  std::vector<PerReplica> update_all(const std::vector<PerReplica>& arguments) {
    return run(arguments, added_ == 0 ? MicroForm::Whole : MicroForm::Last);
  }

  // Micro-batches added up since the last update.
  std::int64_t added() const { return added_; }
  // Forgets what was added up. An error in add or update does so, too.
  void reset() { added_ = rows_ = 0; }

 private:
  std::vector<PerReplica> run(const std::vector<PerReplica>& arguments, MicroForm form);
  static PerReplica only(std::vector<PerReplica> results);

  Strategy strategy_;
  Function function_;
  std::unique_ptr<Accumulators> accumulators_;
  std::int64_t added_ = 0;
  std::int64_t rows_ = 0;  // of what was added up, on all replicas
};

}  // namespace lockstep
