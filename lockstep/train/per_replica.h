// PerReplica: a value of which every replica has its own; and how such values become one.
#pragma once

#include <optional>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

enum class ReduceOp { Sum, Mean };

// One tensor a replica, in their order, on the host; or one that all share. A loss keeps the weight
// beside its sum, so that its mean is that of all samples.
class PerReplica {
 public:
  PerReplica() = default;
  // The same on all replicas.
  PerReplica(Tensor value) : values_{std::move(value)} {}  // NOLINT: a tensor is such a value
  explicit PerReplica(std::vector<Tensor> values, std::vector<Tensor> weights = {});

  bool defined() const { return !values_.empty(); }
  // Of a replica; UsageError where there are not so many.
  const Tensor& at(int replica) const;
  const std::vector<Tensor>& values() const { return values_; }
  const std::vector<Tensor>& weights() const { return weights_; }  // of a loss; else none
  bool shared() const { return values_.size() == 1; }

 private:
  std::vector<Tensor> values_;
  std::vector<Tensor> weights_;
};

// What reduce gives: a tensor, or, where it has one element, a number.
struct Reduced {
  Tensor value;
  operator double() const { return value.item(); }  // NOLINT: as users read it
  operator Tensor() const { return value; }         // NOLINT
};

struct ReduceValuesOptions {
  std::optional<int> axis = {};  // 0: also over the samples of each value
};

// The sum or mean over the replicas, element by element; the mean of a loss is its sum over its
// weight. With axis = 0 the samples are added up too, and the mean divides by their true number,
// whatever the sizes of the pieces.
Reduced reduce_values(ReduceOp op, const PerReplica& values, int replicas,
                      const ReduceValuesOptions& options = {});
// The values one behind the other along an axis.
Tensor gather_values(const PerReplica& values, int axis = 0);

}  // namespace lockstep
