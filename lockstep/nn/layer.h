// Layer: a piece of a model that writes nodes. It knows nothing of devices, ranks or memory.
//
//   ls::Dense dense({.units = 10});
//   Value y = dense(x);             // x a Value: writes nodes into x's graph
//   Symbol s = dense(ls::Input({.shape = {28, 28, 1}}));   // recorded, for Model(inputs, outputs)
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/graph/graph.h"
#include "lockstep/graph/variable.h"

namespace lockstep {

struct CallOptions {
  bool training = false;
  std::uint64_t seed = 0;  // the model's; random layers add their own name to it
};

// What a layer's author writes. One output; several inputs only for layers that merge.
class LayerBase {
 public:
  virtual ~LayerBase() = default;

  virtual std::string kind() const = 0;  // "Dense": for summaries and default names
  // Makes variables for inputs of these types (axis 0 is the batch and must not matter). Called
  // once, before the first call, when the layer has its name.
  virtual void build(std::span<const ValueType> inputs);
  virtual Value call(std::span<const Value> inputs, const CallOptions& options) = 0;
  // The layers inside this one, in order; their variables and losses are this one's too.
  virtual std::vector<class Layer> children() const;

  // Builds where needed, checks that the inputs' types (apart from the batch) are those it was
  // built for, and calls, under the layer's name.
  Value trace(std::span<const Value> inputs, const CallOptions& options);
  void ensure_built(std::span<const ValueType> inputs);

  const std::string& name() const { return name_; }
  // A name may be given once, before the layer is built; models name what is still nameless
  // ("dense", "dense_1", … in the model's order, as Keras does).
  void set_name(std::string name);
  bool built() const { return built_; }

  std::vector<VariableRef> variables() const;            // children's included
  std::vector<VariableRef> trainable_variables() const;  // none where trainable() is false
  bool trainable() const { return trainable_; }
  void set_trainable(bool trainable) { trainable_ = trainable; }
  // The regularisation losses (scalars), written into a graph.
  std::vector<Value> losses(Graph& graph) const;

 protected:
  struct VariableOptions {
    DType dtype = DType::F32;
    bool trainable = true;
    std::function<void(Tensor&, std::uint64_t seed)> initializer = {};
    std::function<Value(Value)> regularizer = {};
  };
  // Makes a variable called "<layer>/<name>".
  VariableRef add_variable(const std::string& name, Shape shape, VariableOptions options);

 private:
  std::string name_;
  bool built_ = false;
  bool trainable_ = true;
  std::vector<ValueType> input_types_;
  std::vector<VariableRef> variables_;
  std::vector<std::pair<VariableRef, std::function<Value(Value)>>> regularizers_;
};

struct SymbolNode;

// The output of a layer call that is not traced yet: what `Input` and layers called on Symbols
// give. Only a record: Model(inputs, outputs) replays it into a graph for each batch size.
class Symbol {
 public:
  Symbol() = default;
  explicit Symbol(std::shared_ptr<const SymbolNode> node) : node_(std::move(node)) {}
  bool defined() const { return node_ != nullptr; }
  const SymbolNode& node() const { return *node_; }
  const std::shared_ptr<const SymbolNode>& shared() const { return node_; }
  ValueType type() const;  // with a batch of 1

 private:
  std::shared_ptr<const SymbolNode> node_;
};

// A handle; copies are the same layer.
class Layer {
 public:
  Layer() = default;
  explicit Layer(std::shared_ptr<LayerBase> base) : base_(std::move(base)) {}

  Value operator()(Value input, const CallOptions& options = {}) const;
  Value operator()(std::span<const Value> inputs, const CallOptions& options = {}) const;
  Symbol operator()(const Symbol& input) const;
  Symbol operator()(const std::vector<Symbol>& inputs) const;

  LayerBase& base() const { return *base_; }
  LayerBase* operator->() const { return base_.get(); }
  const std::shared_ptr<LayerBase>& shared() const { return base_; }
  bool operator==(const Layer&) const = default;

 private:
  std::shared_ptr<LayerBase> base_;
};

// A layer of the user's own: struct Block : LayerBase { … };  auto block = make_layer<Block>(…).
template <class T, class... Args>
Layer make_layer(Args&&... args) {
  return Layer(std::make_shared<T>(std::forward<Args>(args)...));
}

struct SymbolNode {
  Layer layer;  // none for an Input
  std::vector<Symbol> inputs;
  ValueType type;    // with a batch of 1
  std::string name;  // of an Input
};

struct InputOptions {
  Shape shape;  // without the batch
  DType dtype = DType::F32;
  std::string name = "";
};
Symbol Input(InputOptions options);

}  // namespace lockstep
