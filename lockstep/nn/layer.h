// Layer: a part of a model that adds nodes to a graph. It knows nothing about devices, ranks or
// memory.
//
//   ls::Dense dense(10);
//   Value y = dense(x);                    // x is a Value: adds nodes to x's graph
//   Symbol s = dense(ls::Input({28, 28}));  // recorded, for Model(inputs, outputs)
#pragma once

#include <concepts>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/graph/graph.h"
#include "lockstep/graph/variable.h"
#include "lockstep/nn/initializer.h"

namespace lockstep {

struct CallOptions {
  bool training = false;
  std::uint64_t seed = 0;  // the model's; random layers mix in their own name
};

// The base class for implementing a layer. It has one output, and several inputs only if it merges
// them.
class LayerBase {
 public:
  virtual ~LayerBase() = default;

  virtual std::string kind() const = 0;  // "Dense": for summaries and default names
  // Creates variables for inputs of these types (axis 0 is the batch and must not matter). Called
  // once, before the first call and after the layer got its name.
  virtual void build(std::span<const ValueType> inputs);
  virtual Value call(std::span<const Value> inputs, const CallOptions& options) = 0;
  // The layers inside this one, in order; their variables and losses also belong to this one.
  virtual std::vector<class Layer> children() const;

  // Builds the layer if needed, checks that the inputs' types (apart from the batch) are those it
  // was built for, and calls it, under the layer's name.
  Value trace(std::span<const Value> inputs, const CallOptions& options);
  void ensure_built(std::span<const ValueType> inputs);

  const std::string& name() const { return name_; }
  // A name may be given once, before the layer is built; models name the layers without one
  // ("dense", "dense_1", … in the model's order, as Keras does).
  void set_name(std::string name);
  // The names from the outermost model (which has none itself) down to this layer,
  // "encoder/dense_1": the prefix of its variables' names. The first network or layer that contains
  // this one decides it; later ones do not change it.
  const std::string& path() const { return path_; }
  bool built() const { return built_; }

  std::vector<VariableRef> variables() const;            // children's included
  std::vector<VariableRef> trainable_variables() const;  // none if trainable() is false
  bool trainable() const { return trainable_; }
  void set_trainable(bool trainable);  // the children's too
  // Marks the layer for recomputation: with recompute = "blocks", only its inputs and outputs are
  // kept for the backward pass, which computes the rest again. Nodes say so in their names.
  void set_checkpoint(bool checkpoint) { checkpoint_ = checkpoint; }
  // The regularisation losses (scalars), added to a graph.
  std::vector<Value> losses(Graph& graph) const;

 protected:
  struct VariableOptions {
    DType dtype = DType::F32;
    bool trainable = true;
    Initializer initializer = {};
    std::function<Value(Value)> regularizer = {};
  };
  // Creates a variable called "<layer>/<name>".
  VariableRef add_variable(const std::string& name, Shape shape, VariableOptions options);
  // The prefix of messages about this layer: "[conv2d] conv2d_1: ".
  std::string where() const;
  // The input of a layer that takes only one; UsageError if there are more.
  Value only(std::span<const Value> inputs) const;
  const ValueType& only(std::span<const ValueType> inputs) const;
  // UsageError unless the input holds floats; says how to turn integers into them.
  void require_floats(const ValueType& input) const;
  // The input in f32 if it holds integers, booleans or f64: how products treat them, as in Keras.
  static Value as_floats(Value input);
  // UsageError unless the input is (N, H, W, C).
  void require_images(const ValueType& input) const;
  // The types it was built for; empty before that.
  const std::vector<ValueType>& built_for() const { return built_for_; }
  // Names the children that have no name yet and sets their paths. Called when children become
  // known: after build(), and by networks when layers are added.
  void adopt_children();
  // Whether the layer is a whole model unless another one contains it: its name is then not part of
  // its children's paths.
  virtual bool is_model() const { return false; }

 private:
  struct Owned {
    std::shared_ptr<Variable> variable;
    std::string name;  // within the layer
    Initializer initializer;
    std::function<Value(Value)> regularizer;
  };
  void settle_name(const Graph* graph);
  void set_path(std::string path);
  void name_variable(Owned& owned) const;
  void check_inputs(std::span<const ValueType> inputs) const;

  std::string name_;
  std::string path_;
  bool named_by_caller_ = false;
  const LayerBase* holder_ = nullptr;  // decides the path; compared, never dereferenced
  bool built_ = false;
  bool trainable_ = true;
  bool checkpoint_ = false;
  std::vector<ValueType> built_for_;
  std::vector<Owned> variables_;
};

// A type with None for the batch, as Keras writes it: "(None, 28, 28, 1)".
std::string shape_without_batch(const Shape& shape);

struct SymbolNode;

// The output of a layer call that is not traced yet: what `Input` and layers called on Symbols
// return. It is only a record: Model(inputs, outputs) replays it into a graph for each batch size.
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

// A handle; copies refer to the same layer.
class Layer {
 public:
  Layer() = default;
  explicit Layer(std::shared_ptr<LayerBase> base) : base_(std::move(base)) {}
  // An Input in a list of layers: Sequential({Input({28, 28}), Flatten(), Dense(10)}). UsageError
  // for the output of a layer.
  Layer(const Symbol& input);  // NOLINT: an Input is a layer

  Value operator()(Value input, const CallOptions& options = {}) const;
  Value operator()(std::span<const Value> inputs, const CallOptions& options = {}) const;
  Value operator()(std::initializer_list<Value> inputs, const CallOptions& options = {}) const;
  Symbol operator()(const Symbol& input) const;
  Symbol operator()(const std::vector<Symbol>& inputs) const;

  // UsageError if the handle is empty.
  LayerBase& base() const;
  LayerBase* operator->() const { return &base(); }
  const std::shared_ptr<LayerBase>& shared() const { return base_; }
  bool operator==(const Layer&) const = default;

 private:
  std::shared_ptr<LayerBase> base_;
};

// A user-defined layer: struct Block : LayerBase { … }; auto block = make_layer<Block>(…).
template <class T, class... Args>
Layer make_layer(Args&&... args) {
  return Layer(std::make_shared<T>(std::forward<Args>(args)...));
}

// The same with a name, if it is not empty.
template <class T, class... Args>
Layer make_named_layer(const std::string& name, Args&&... args) {
  Layer layer = make_layer<T>(std::forward<Args>(args)...);
  if (!name.empty()) layer->set_name(name);
  return layer;
}

// The same layer, marked: LayerBase::set_checkpoint. Names and values of variables stay as they
// are.
//   Sequential({checkpoint(block(64)), checkpoint(block(128)), Dense(10)})
Layer checkpoint(Layer layer);

struct SymbolNode {
  Layer layer;  // empty for an Input
  std::vector<Symbol> inputs;
  ValueType type;    // with a batch of 1
  std::string name;  // of an Input
};

struct InputOptions {
  Shape shape = {};  // without the batch
  DType dtype = DType::F32;
  std::string name = "";
};
Symbol Input(InputOptions options);

// A shape in braces as a layer's argument: {28, 28, 1}.
struct Extents {
  template <std::integral... Extent>
  requires(sizeof...(Extent) > 0) Extents(Extent... extents)  // NOLINT: numbers are such
      : values{static_cast<std::int64_t>(extents)...} {}
  Extents(const Shape& shape)  // NOLINT: a shape is such
      : values(shape.dims().begin(), shape.dims().end()) {}
  std::vector<std::int64_t> values;
};
Symbol Input(Extents shape, InputOptions options = {});  // Input({28, 28, 1})

}  // namespace lockstep
