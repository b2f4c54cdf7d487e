// Graph: a step as data. Nodes are in an order in which they can run; values have static shapes;
// there is no memory and no device.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/base/dtype.h"
#include "lockstep/base/shape.h"
#include "lockstep/base/slice.h"
#include "lockstep/graph/attrs.h"
#include "lockstep/graph/layout.h"
#include "lockstep/graph/op.h"
#include "lockstep/graph/variable.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

class Graph;

using ValueId = int;
using NodeId = int;

struct ValueType {
  DType dtype = DType::F32;
  Shape shape;
  bool operator==(const ValueType&) const = default;
  std::string str() const;  // "f32(32, 10)"
};

// A symbolic array: an output of a node. A small handle; the graph must outlive it.
class Value {
 public:
  Value() = default;
  Value(Graph* graph, ValueId id) : graph_(graph), id_(id) {}

  bool defined() const { return graph_ != nullptr; }
  Graph& graph() const { return *graph_; }
  ValueId id() const { return id_; }
  const ValueType& type() const;
  const Shape& shape() const { return type().shape; }
  DType dtype() const { return type().dtype; }
  bool operator==(const Value&) const = default;

 private:
  Graph* graph_ = nullptr;
  ValueId id_ = -1;
};

struct Node {
  Op op = Op::Input;
  std::string name = {};  // where it came from: "dense_1", "dense_1.grad"; for people
  Attrs attrs = {};
  std::vector<ValueId> inputs = {};
  std::vector<ValueId> outputs = {};
  VariableRef variable = {};  // of Op::Variable; {begin, end} where the value is a slice of it
  Tensor constant = {};       // of Op::Constant
};

struct ValueInfo {
  ValueType type;
  Layout layout;
  NodeId producer = -1;
  // Its placement, derived by the pass Place. Nodes that later passes make have none.
  Placements placement = {};
};

class Graph {
 public:
  Graph() = default;
  Graph(Graph&&) = default;
  Graph& operator=(Graph&&) = default;

  // Something fed before every step. Names are unique.
  Value input(std::string name, ValueType type);
  // The value of a variable as it is before the step; one node for each variable.
  Value variable(const VariableRef& variable);
  // The same for one that is Sharded(flat): those of its elements, in row-major order, that this
  // rank has, as a value with one dimension.
  Value variable(const VariableRef& variable, const Slice& slice);
  Value constant(Tensor tensor);
  Value scalar(double value, DType dtype = DType::F32);

  // Adds a node; its output types follow from the op's shape rule. An error of the rule becomes a
  // UsageError that names the op and the scope: "[matmul] dense_1: ...".
  std::vector<Value> add(Op op, std::span<const Value> inputs, Attrs attrs = {});
  // The same for an op with one output.
  Value add1(Op op, std::initializer_list<Value> inputs, Attrs attrs = {});

  // Makes a value a result that the caller can read after a step. Names are unique.
  void output(std::string name, Value value);

  const std::vector<Node>& nodes() const { return nodes_; }
  const Node& node(NodeId id) const { return nodes_[static_cast<std::size_t>(id)]; }
  const ValueInfo& info(ValueId id) const { return values_[static_cast<std::size_t>(id)]; }
  ValueInfo& info(ValueId id) { return values_[static_cast<std::size_t>(id)]; }
  const ValueType& type(ValueId id) const { return info(id).type; }
  int value_count() const { return static_cast<int>(values_.size()); }
  const Node& producer(ValueId id) const { return node(info(id).producer); }

  const std::vector<std::pair<std::string, ValueId>>& inputs() const { return inputs_; }
  const std::vector<std::pair<std::string, ValueId>>& outputs() const { return outputs_; }
  // The input or output of a name; UsageError, listing the names, if there is none.
  ValueId input_id(std::string_view name) const;
  ValueId output_id(std::string_view name) const;
  std::vector<VariableRef> variables() const;  // in the order of their first mention

  // Bytes of a value in memory, in its layout.
  std::size_t bytes(ValueId id) const;

  // Names the nodes added while it lives: { NameScope scope(graph, "dense_1"); ... }
  class NameScope {
   public:
    NameScope(Graph& graph, std::string_view name);
    ~NameScope();
    NameScope(const NameScope&) = delete;
    NameScope& operator=(const NameScope&) = delete;

   private:
    Graph& graph_;
    std::size_t length_;
  };
  const std::string& scope() const { return scope_; }

 private:
  friend class Rewriter;
  ValueId add_value(ValueType type, NodeId producer);
  Value add_leaf(Node node, ValueType type);

  std::vector<Node> nodes_;
  std::deque<ValueInfo> values_;  // elements never move: shapes are handed out by reference
  std::vector<std::pair<std::string, ValueId>> inputs_;
  std::vector<std::pair<std::string, ValueId>> outputs_;
  std::unordered_map<const Variable*, ValueId> variables_;
  std::string scope_;
};

// The elements, row-major, that a variable's node represents: all, or the slice of this rank.
Slice slice_of_variable(const Node& node);

// A copy of the graph.
Graph clone(const Graph& graph);

// Builds a changed copy of a graph, node by node. A pass walks source.nodes() in order and either
// copies each node or adds others instead and maps the values that they replace.
class Rewriter {
 public:
  explicit Rewriter(const Graph& source) : source_(source), map_(source.values_.size()) {}

  Graph& target() { return target_; }
  // The target's value for a value of the source; InternalError before it is known.
  Value map(ValueId id) const;
  std::vector<Value> map(std::span<const ValueId> ids) const;
  bool knows(ValueId id) const { return map_[static_cast<std::size_t>(id)].defined(); }
  void set(ValueId id, Value value) { map_[static_cast<std::size_t>(id)] = value; }
  // Copies a node with its inputs mapped, and maps its outputs; layouts and placements are copied
  // too.
  void copy(const Node& node);
  // The same with other inputs or attributes.
  void copy_as(const Node& node, std::span<const Value> inputs, Attrs attrs);
  // The finished graph, with the source's outputs mapped.
  Graph finish();

 private:
  const Graph& source_;
  Graph target_;
  std::vector<Value> map_;
};

// Throws InternalError, naming the node, where the graph breaks a rule: an input that is defined
// later, an output whose type is not what the shape rule gives, a duplicate name.
void verify(const Graph& graph);

// The graph as text, one node per line.
std::string print(const Graph& graph);

}  // namespace lockstep
