#include "lockstep/graph/graph.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/graph/op_def.h"

namespace lockstep {
namespace {

ValueId find_named(const std::vector<std::pair<std::string, ValueId>>& list, std::string_view name,
                   std::string_view what) {
  std::string known;
  for (const auto& [candidate, id] : list) {
    if (candidate == name) return id;
    known += known.empty() ? candidate : ", " + candidate;
  }
  fail<UsageError>("[graph] there is no {} called {}; there are: {}", what, name, known);
}

void expect_new(const std::vector<std::pair<std::string, ValueId>>& list, std::string_view name,
                std::string_view what) {
  const bool taken =
      std::any_of(list.begin(), list.end(), [&](const auto& entry) { return entry.first == name; });
  require(!taken, "[graph] there are two {}s called {}; give one another name", what, name);
}

}  // namespace

std::string ValueType::str() const {
  return fmt::format("{}{}", name_of(dtype), shape);
}

const ValueType& Value::type() const {
  ensure(defined(), "a value was read that no node has made");
  return graph_->type(id_);
}

ValueId Graph::add_value(ValueType type, NodeId producer) {
  values_.push_back({.type = std::move(type), .layout = {}, .producer = producer, .placement = {}});
  return static_cast<ValueId>(values_.size()) - 1;
}

Value Graph::add_leaf(Node node, ValueType type) {
  const ValueId id = add_value(std::move(type), static_cast<NodeId>(nodes_.size()));
  node.outputs = {id};
  nodes_.push_back(std::move(node));
  return {this, id};
}

Value Graph::input(std::string name, ValueType type) {
  expect_new(inputs_, name, "input");
  const Value value = add_leaf({.op = Op::Input, .name = name}, std::move(type));
  inputs_.emplace_back(std::move(name), value.id());
  return value;
}

Value Graph::variable(const VariableRef& variable) {
  const auto found = variables_.find(variable.get());
  if (found != variables_.end()) return {this, found->second};
  const Value value = add_leaf({.op = Op::Variable, .name = variable->name, .variable = variable},
                               {variable->dtype, variable->shape});
  variables_[variable.get()] = value.id();
  info(value.id()).placement = variable->placement;
  return value;
}

Value Graph::variable(const VariableRef& variable, const Slice& slice) {
  const auto found = variables_.find(variable.get());
  const bool known = found != variables_.end();
  if (known && producer(found->second).attrs.has("begin") &&
      slice_of_variable(producer(found->second)) == slice) {
    return {this, found->second};
  }
  ensure(!known && slice.begin <= slice.end &&
             std::cmp_less_equal(slice.end, variable->shape.elements()),
         "elements {} to {} of variable {}, which has {}", slice.begin, slice.end, variable->name,
         variable->shape.elements());
  const auto begin = static_cast<std::int64_t>(slice.begin);
  const auto end = static_cast<std::int64_t>(slice.end);
  const Value value = add_leaf({.op = Op::Variable,
                                .name = variable->name,
                                .attrs = {{"begin", begin}, {"end", end}},
                                .variable = variable},
                               {variable->dtype, {end - begin}});
  variables_[variable.get()] = value.id();
  info(value.id()).placement = Placement::sharded_flat();
  return value;
}

Slice slice_of_variable(const Node& node) {
  if (!node.attrs.has("begin")) {
    return {0, static_cast<std::size_t>(node.variable->shape.elements())};
  }
  return {static_cast<std::size_t>(node.attrs.integer("begin")),
          static_cast<std::size_t>(node.attrs.integer("end"))};
}

Value Graph::constant(Tensor tensor) {
  ValueType type{tensor.dtype(), tensor.shape()};
  return add_leaf({.op = Op::Constant, .name = scope_, .constant = std::move(tensor)},
                  std::move(type));
}

Value Graph::scalar(double value, DType dtype) {
  return constant(Tensor::scalar(value).cast(dtype));
}

std::vector<Value> Graph::add(Op op, std::span<const Value> inputs, Attrs attrs) {
  const OpDef& def = op_def(op);
  std::vector<ValueType> types;
  Node node{.op = op, .name = scope_, .attrs = std::move(attrs)};
  for (const Value& input : inputs) {
    ensure(input.defined(), "[{}] {}: an input is missing", def.name, scope_);
    ensure(&input.graph() == this, "[{}] {}: an input belongs to another graph", def.name, scope_);
    types.push_back(input.type());
    node.inputs.push_back(input.id());
  }
  std::vector<ValueType> results;
  try {
    results = def.infer({types, node.attrs});
  } catch (const UsageError& error) {
    fail<UsageError>("[{}] {}{}{}", def.name, scope_, scope_.empty() ? "" : ": ", error.what());
  }
  const auto id = static_cast<NodeId>(nodes_.size());
  std::vector<Value> outputs;
  for (ValueType& type : results) {
    node.outputs.push_back(add_value(std::move(type), id));
    outputs.emplace_back(this, node.outputs.back());
  }
  nodes_.push_back(std::move(node));
  return outputs;
}

Value Graph::add1(Op op, std::initializer_list<Value> inputs, Attrs attrs) {
  return add(op, std::span<const Value>(inputs.begin(), inputs.size()), std::move(attrs)).at(0);
}

void Graph::output(std::string name, Value value) {
  expect_new(outputs_, name, "output");
  ensure(value.defined() && &value.graph() == this, "output {} is of another graph", name);
  outputs_.emplace_back(std::move(name), value.id());
}

ValueId Graph::input_id(std::string_view name) const {
  return find_named(inputs_, name, "input");
}

ValueId Graph::output_id(std::string_view name) const {
  return find_named(outputs_, name, "output");
}

std::vector<VariableRef> Graph::variables() const {
  std::vector<VariableRef> variables;
  for (const Node& node : nodes_) {
    if (node.op == Op::Variable) variables.push_back(node.variable);
  }
  return variables;
}

std::size_t Graph::bytes(ValueId id) const {
  const ValueInfo& value = info(id);
  return static_cast<std::size_t>(value.layout.elements(value.type.shape)) *
         size_of(value.type.dtype);
}

Graph::NameScope::NameScope(Graph& graph, std::string_view name)
    : graph_(graph), length_(graph.scope_.size()) {
  if (!graph_.scope_.empty() && !name.empty()) graph_.scope_ += '/';
  graph_.scope_ += name;
}

Graph::NameScope::~NameScope() {
  graph_.scope_.resize(length_);
}

Graph clone(const Graph& graph) {
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) rewriter.copy(node);
  return rewriter.finish();
}

Value Rewriter::map(ValueId id) const {
  const Value value = map_[static_cast<std::size_t>(id)];
  ensure(value.defined(), "value {} was used before a pass rewrote it", id);
  return value;
}

std::vector<Value> Rewriter::map(std::span<const ValueId> ids) const {
  std::vector<Value> values;
  for (ValueId id : ids) values.push_back(map(id));
  return values;
}

void Rewriter::copy(const Node& node) {
  const std::vector<Value> inputs = map(node.inputs);
  copy_as(node, inputs, node.attrs);
}

void Rewriter::copy_as(const Node& node, std::span<const Value> inputs, Attrs attrs) {
  std::vector<Value> outputs;
  switch (node.op) {
    case Op::Input:
      outputs = {target_.input(node.name, source_.type(node.outputs[0]))};
      break;
    case Op::Variable:
      outputs = {node.attrs.has("begin") ? target_.variable(node.variable, slice_of_variable(node))
                                         : target_.variable(node.variable)};
      break;
    case Op::Constant:
      outputs = {target_.constant(node.constant)};
      target_.nodes_.back().name = node.name;
      break;
    default: {
      Graph::NameScope scope(target_, node.name);
      outputs = target_.add(node.op, inputs, std::move(attrs));
    }
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    target_.info(outputs[i].id()).layout = source_.info(node.outputs[i]).layout;
    target_.info(outputs[i].id()).placement = source_.info(node.outputs[i]).placement;
    set(node.outputs[i], outputs[i]);
  }
}

Graph Rewriter::finish() {
  for (const auto& [name, id] : source_.outputs_) target_.output(name, map(id));
  return std::move(target_);
}

}  // namespace lockstep
