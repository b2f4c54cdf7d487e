#include "lockstep/nn/layers/merge.h"

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/shape.h"
#include "lockstep/nn/layers/argument.h"

namespace lockstep {
namespace {

using BinaryFunction = Value (*)(Value a, Value b);

class MergeLayer final : public LayerBase {
 public:
  MergeLayer(std::string kind, BinaryFunction merge) : kind_(std::move(kind)), merge_(merge) {}
  std::string kind() const override { return kind_; }
  Value call(std::span<const Value> inputs, const CallOptions&) override {
    require(inputs.size() >= 2, "{}merges two or more inputs, got {}", where(), inputs.size());
    Value merged = inputs[0];
    for (const Value& input : inputs.subspan(1)) {
      require(input.dtype() == merged.dtype(), "{}inputs have different dtypes: {} and {}", where(),
              merged.type().str(), input.type().str());
      merged = merge_(merged, input);
    }
    return merged;
  }

 private:
  std::string kind_;
  BinaryFunction merge_;
};

class ConcatenateLayer final : public LayerBase {
 public:
  explicit ConcatenateLayer(int axis) : axis_(axis) {}
  std::string kind() const override { return "Concatenate"; }
  Value call(std::span<const Value> inputs, const CallOptions&) override {
    require(inputs.size() >= 2, "{}concatenates two or more inputs, got {}", where(),
            inputs.size());
    const int rank = inputs[0].shape().rank();
    require(axis_ != 0 && axis_ != -rank, "{}cannot concatenate along the batch: axis {} of {}",
            where(), axis_, inputs[0].shape());
    return concat(inputs, axis_);
  }

 private:
  int axis_;
};

}  // namespace

Add::Add(MergeOptions options)
    : Layer(make_named_layer<MergeLayer>(options.name, "Add", static_cast<BinaryFunction>(add))) {}

Multiply::Multiply(MergeOptions options)
    : Layer(make_named_layer<MergeLayer>(options.name, "Multiply",
                                         static_cast<BinaryFunction>(mul))) {}

Concatenate::Concatenate(ConcatenateOptions options)
    : Layer(make_named_layer<ConcatenateLayer>(options.name, options.axis)) {}

Concatenate::Concatenate(int axis, ConcatenateOptions options)
    : Concatenate(with_argument("concatenate", "axis", &ConcatenateOptions::axis, axis,
                                std::move(options))) {}

}  // namespace lockstep
