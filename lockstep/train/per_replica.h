// PerReplica: a value that differs between replicas, and how to reduce or gather it.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

enum class ReduceOp { Sum, Mean };

// Results of a step that may still be running.
class PendingResults {
 public:
  virtual ~PendingResults() = default;
  // One result of every replica, on the host. Waits for the step; throws its error if it failed.
  virtual std::vector<Tensor> read(std::size_t result) = 0;
};

// One tensor per replica of this worker, in order, on the host; or one that all share. A loss keeps
// its weight next to its sum, so that its mean is the mean over all samples. If it is the result of
// a step that is still in flight, the first read waits for the step.
class PerReplica {
 public:
  PerReplica() = default;
  // The same value on all replicas.
  PerReplica(Tensor value)  // NOLINT: implicit
      : shared_(true), values_{std::move(value)} {}
  explicit PerReplica(std::vector<Tensor> values, std::vector<Tensor> weights = {});
  // Result number `value` of a step and, for a loss, the number of the result that is its weight.
  PerReplica(std::shared_ptr<PendingResults> results, std::size_t value,
             std::optional<std::size_t> weight);

  bool defined() const { return pending_ != nullptr || !values_.empty(); }
  // The value of one replica; UsageError if there is no such replica.
  const Tensor& at(int replica) const;
  const std::vector<Tensor>& values() const;
  const std::vector<Tensor>& weights() const;  // of a loss; otherwise empty
  bool shared() const { return shared_; }

 private:
  void read() const;

  mutable std::shared_ptr<PendingResults> pending_;  // until it is read
  bool shared_ = false;
  std::size_t value_ = 0;
  std::optional<std::size_t> weight_;
  mutable std::vector<Tensor> values_;
  mutable std::vector<Tensor> weights_;
};

// The result of reduce: a tensor, or a number if it has one element.
struct Reduced {
  Tensor value;
  operator double() const { return value.item(); }  // NOLINT: implicit
  operator Tensor() const { return value; }         // NOLINT
};

struct ReduceValuesOptions {
  std::optional<int> axis = {};  // 0: also over the samples of each value
};

// The sum or mean over the replicas, element by element; the mean of a loss is its sum divided by
// its weight. With axis = 0 the samples are added up as well, and the mean divides by their actual
// number, whatever the sizes of the pieces.
Reduced reduce_values(ReduceOp op, const PerReplica& values, int replicas,
                      const ReduceValuesOptions& options = {});
// Concatenates the values along an axis.
Tensor gather_values(const PerReplica& values, int axis = 0);

}  // namespace lockstep
