#include "lockstep/nn/network.h"

#include <functional>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/nn/layers/input.h"
#include "lockstep/nn/naming.h"

namespace lockstep {
namespace {

// Inputs of these types in a temporary graph that is only used to find types and build layers.
std::vector<Value> scratch_inputs(Graph& scratch, std::span<const ValueType> types) {
  std::vector<Value> values;
  for (const ValueType& type : types) {
    values.push_back(scratch.input(fmt::format("{}", values.size()), type));
  }
  return values;
}

}  // namespace

std::shared_ptr<Network> Network::sequential(std::vector<Layer> layers, std::string name) {
  std::shared_ptr<Network> network(new Network);
  network->sequential_ = true;
  network->outputs_ = {0};
  if (!name.empty()) network->set_name(std::move(name));
  for (Layer& layer : layers) network->add(std::move(layer));
  return network;
}

void Network::add(Layer layer) {
  require(sequential_, "{}layers can only be added to a sequential network", where());
  require(!built() || !input_types_.empty(), "{}is already built: no layer can be added", where());
  require(layer.shared() != nullptr, "{}an empty Layer was added", where());
  if (calls_.empty()) {
    const auto* input = dynamic_cast<const InputLayerBase*>(&layer.base());
    if (input != nullptr) input_types_ = {input->type()};
  }
  calls_.push_back({std::move(layer), {calls_.size()}});
  outputs_ = {calls_.size()};
  adopt_children();
  if (built()) build(built_for());
}

std::shared_ptr<Network> Network::functional(std::vector<Symbol> inputs,
                                             std::vector<Symbol> outputs, std::string name) {
  std::shared_ptr<Network> network(new Network);
  if (!name.empty()) network->set_name(std::move(name));
  require(!inputs.empty() && !outputs.empty(),
          "[model] needs at least one input and one output, got {} and {}", inputs.size(),
          outputs.size());
  std::unordered_map<const SymbolNode*, std::size_t> index;
  for (const Symbol& input : inputs) {
    network->input_types_.push_back(input.type());
    require(index.emplace(&input.node(), index.size()).second,
            "[model] the same input is given twice");
    network->input_names_.push_back(input.node().name);
  }
  // Depth first: the inputs of a layer, in order, before the layer.
  const std::function<std::size_t(const Symbol&)> visit = [&](const Symbol& symbol) {
    const SymbolNode& node = symbol.node();
    const auto found = index.find(&node);
    if (found != index.end()) return found->second;
    require(node.layer.shared() != nullptr,
            "[model] an output depends on the Input {}{}, which is not among the inputs",
            node.name.empty() ? "" : node.name + " ", shape_without_batch(node.type.shape));
    Call call{node.layer, {}};
    for (const Symbol& input : node.inputs) call.inputs.push_back(visit(input));
    network->calls_.push_back(std::move(call));
    return index[&node] = inputs.size() + network->calls_.size() - 1;
  };
  for (const Symbol& output : outputs) {
    require(output.defined(), "[model] an output is an empty Symbol");
    network->outputs_.push_back(visit(output));
  }
  network->adopt_children();
  return network;
}

std::string Network::kind() const {
  return sequential_ ? "Sequential" : "Functional";
}

void Network::build(std::span<const ValueType> inputs) {
  Graph scratch;
  replay(scratch_inputs(scratch, inputs), {});
  std::unordered_set<std::string> names;
  for (const VariableRef& variable : variables()) {
    require(names.insert(variable->name).second,
            "{}two variables are called {}; give the layers other names", where(), variable->name);
  }
}

void Network::check_inputs(std::span<const Value> inputs) const {
  require(inputs.size() == input_count(), "{}expects {} input(s), got {}", where(), input_count(),
          inputs.size());
  require(!calls_.empty() || !sequential_, "{}has no layers", where());
  if (sequential_) return;  // an InputLayer checks its own input
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const ValueType& want = input_types_[i];
    const ValueType& got = inputs[i].type();
    const bool fits = got.dtype == want.dtype && got.shape.rank() == want.shape.rank() &&
                      got.shape.with(0, 1) == want.shape.with(0, 1);
    require(fits, "{}input {} expects {}{}, got {}{}", where(),
            input_names_[i].empty() ? std::to_string(i) : input_names_[i], name_of(want.dtype),
            shape_without_batch(want.shape), name_of(got.dtype), got.shape);
  }
}

Value Network::accept(Value input, std::size_t index) const {
  if (input_types_.empty()) return input.dtype() == DType::F64 ? cast(input, DType::F32) : input;
  if (index >= input_types_.size()) return input;
  const DType wanted = input_types_[index].dtype;
  const bool fits = is_floating(wanted) || !is_floating(input.dtype());
  return fits && input.dtype() != wanted ? cast(input, wanted) : input;
}

std::vector<Value> Network::replay(std::span<const Value> inputs,
                                   const CallOptions& options) const {
  std::vector<Value> values;
  for (const Value& input : inputs) values.push_back(accept(input, values.size()));
  check_inputs(values);
  for (const Call& call : calls_) {
    std::vector<Value> arguments;
    for (std::size_t i : call.inputs) arguments.push_back(values[i]);
    values.push_back(call.layer->trace(arguments, options));
  }
  return values;
}

Value Network::call(std::span<const Value> inputs, const CallOptions& options) {
  return replay(inputs, options)[outputs_[0]];
}

std::vector<Value> Network::call_all(std::span<const Value> inputs, const CallOptions& options) {
  const std::vector<Value> values = replay(inputs, options);
  std::vector<Value> outputs;
  for (std::size_t i : outputs_) outputs.push_back(values[i]);
  return outputs;
}

std::vector<Layer> Network::children() const {
  std::vector<Layer> layers;
  std::unordered_set<const LayerBase*> seen;
  for (const Call& call : calls_) {
    if (seen.insert(&call.layer.base()).second) layers.push_back(call.layer);
  }
  return layers;
}

std::size_t Network::input_count() const {
  return sequential_ ? 1 : input_types_.size();
}

std::size_t Network::output_count() const {
  return outputs_.size();
}

std::vector<ValueType> Network::input_types() const {
  return input_types_;
}

}  // namespace lockstep
