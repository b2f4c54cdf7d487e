// Network: connected layers, itself a layer. The basis of Sequential and of functional models.
#pragma once

#include <string>
#include <vector>

#include "lockstep/nn/layer.h"

namespace lockstep {

class Network final : public LayerBase {
 public:
  // One layer after the other.
  static std::shared_ptr<Network> sequential(std::vector<Layer> layers, std::string name = "");
  // The layers that lead from the inputs to the outputs. UsageError if an output depends on an
  // Input that is not listed.
  static std::shared_ptr<Network> functional(std::vector<Symbol> inputs,
                                             std::vector<Symbol> outputs, std::string name = "");

  std::string kind() const override;
  void build(std::span<const ValueType> inputs) override;
  Value call(std::span<const Value> inputs, const CallOptions& options) override;  // output 0
  std::vector<Value> call_all(std::span<const Value> inputs, const CallOptions& options);
  std::vector<Layer> children() const override;

  std::size_t input_count() const;
  std::size_t output_count() const;
  // The types that the inputs must have (batch of 1), if they are known without data: for the
  // functional form, or a Sequential whose first layer is an InputLayer. Otherwise empty.
  std::vector<ValueType> input_types() const;
  // Only for a sequential network that is not built yet, or whose input_types() are known.
  void add(Layer layer);

  // Keras's table: layer (kind), output shape with None for the batch, parameters; totals. The
  // types of the inputs are only needed if the network is not built and input_types() is empty.
  std::string summary(std::span<const ValueType> inputs = {}) const;

 protected:
  bool is_model() const override { return true; }

 private:
  Network() = default;
  struct Call {  // one layer call: indices into the list of values, inputs first
    Layer layer;
    std::vector<std::size_t> inputs;
  };
  // What the summary says about a layer call.
  struct Row;
  // An input as the network reads it: cast to the dtype of its Input, if that makes sense; without
  // an Input, f64 becomes f32.
  Value accept(Value input, std::size_t index) const;
  // All values of a replay, inputs first.
  std::vector<Value> replay(std::span<const Value> inputs, const CallOptions& options) const;
  void check_inputs(std::span<const Value> inputs) const;
  std::vector<Row> rows(std::span<const ValueType> inputs) const;
  bool is_chain() const;

  std::vector<ValueType> input_types_;
  std::vector<std::string> input_names_;
  std::vector<Call> calls_;
  std::vector<std::size_t> outputs_;
  bool sequential_ = false;
};

}  // namespace lockstep
