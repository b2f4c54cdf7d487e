#include "lockstep/nn/layer.h"

#include <algorithm>
#include <array>
#include <unordered_set>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/recomputed.h"
#include "lockstep/nn/layers/argument.h"
#include "lockstep/nn/layers/input.h"
#include "lockstep/nn/naming.h"

namespace lockstep {
namespace {

bool same_apart_from_batch(const ValueType& a, const ValueType& b) {
  if (a.dtype != b.dtype || a.shape.rank() != b.shape.rank()) return false;
  const auto x = a.shape.dims(), y = b.shape.dims();
  return std::equal(x.begin() + 1, x.end(), y.begin() + 1);
}

std::string type_without_batch(const ValueType& type) {
  return fmt::format("{}{}", name_of(type.dtype), shape_without_batch(type.shape));
}

std::string types_without_batch(std::span<const ValueType> types) {
  std::string text;
  for (const ValueType& type : types) {
    text += (text.empty() ? "" : ", ") + type_without_batch(type);
  }
  return text;
}

// The layers of a list, each once, in order.
std::vector<Layer> without_repeats(std::vector<Layer> layers) {
  std::unordered_set<const LayerBase*> seen;
  std::erase_if(layers, [&](const Layer& layer) { return !seen.insert(&layer.base()).second; });
  return layers;
}

std::vector<ValueType> types_of(std::span<const Value> values) {
  std::vector<ValueType> types;
  for (const Value& value : values) types.push_back(value.type());
  return types;
}

}  // namespace

std::string shape_without_batch(const Shape& shape) {
  std::string text = "(None";
  for (std::int64_t extent : shape.dims().subspan(shape.rank() > 0 ? 1 : 0)) {
    text += fmt::format(", {}", extent);
  }
  return text + (shape.rank() > 1 ? ")" : ",)");
}

void LayerBase::build(std::span<const ValueType>) {}

std::vector<Layer> LayerBase::children() const {
  return {};
}

std::string LayerBase::where() const {
  const std::string& name = path_.empty() ? name_ : path_;
  return name.empty() ? fmt::format("[{}] ", snake_case(kind()))
                      : fmt::format("[{}] {}: ", snake_case(kind()), name);
}

Value LayerBase::only(std::span<const Value> inputs) const {
  require(inputs.size() == 1, "{}expects one input, got {}", where(), inputs.size());
  return inputs[0];
}

const ValueType& LayerBase::only(std::span<const ValueType> inputs) const {
  require(inputs.size() == 1, "{}expects one input, got {}", where(), inputs.size());
  return inputs[0];
}

void LayerBase::require_floats(const ValueType& input) const {
  require(is_floating(input.dtype),
          "{}expects floating-point numbers, got {}; put a Rescaling layer (for pixels: "
          "Rescaling({{.scale = 1.0 / 255}})) in front of it, or cast the data",
          where(), input.str());
}

Value LayerBase::as_floats(Value input) {
  const bool ready = is_floating(input.dtype()) && input.dtype() != DType::F64;
  return ready ? input : cast(input, DType::F32);
}

void LayerBase::require_images(const ValueType& input) const {
  require(input.shape.rank() == 4, "{}expects images (N, H, W, C), got {}", where(), input.shape);
}

void LayerBase::set_name(std::string name) {
  require(!named_by_caller_, "[{}] a layer can be named only once: it is called {}, not {}",
          snake_case(kind()), name_, name);
  require(!built_, "{}can no longer be called {}: its variables exist", where(), name);
  require(!name.empty() && name.find('/') == std::string::npos,
          "[{}] \"{}\" is not a valid name for a layer: it must not be empty or contain '/'",
          snake_case(kind()), name);
  const std::string old = std::exchange(name_, std::move(name));
  named_by_caller_ = true;
  if (path_.empty()) return;
  set_path(path_.substr(0, path_.size() - old.size()) + name_);
}

// A layer without a name is named after its kind; outside of a model, with a suffix that makes the
// name unique in its scope of the graph.
void LayerBase::settle_name(const Graph* graph) {
  const std::string scope = graph == nullptr ? "" : graph->scope();
  if (name_.empty()) {
    name_ = unique_name(snake_case(kind()), [&](const std::string& candidate) {
      if (graph == nullptr) return false;
      const std::string path = join_path(scope, candidate);
      return std::any_of(graph->nodes().begin(), graph->nodes().end(), [&](const Node& node) {
        return node.name == path || node.name.starts_with(path + "/");
      });
    });
  }
  if (path_.empty() && holder_ == nullptr && !is_model()) set_path(join_path(scope, name_));
}

void LayerBase::set_path(std::string path) {
  path_ = std::move(path);
  for (Owned& owned : variables_) name_variable(owned);
  for (const Layer& child : children()) {
    if (child->holder_ == this) child->set_path(join_path(path_, child->name_));
  }
}

// Names also determine initial values: each variable draws from its own random stream.
void LayerBase::name_variable(Owned& owned) const {
  Variable& variable = *owned.variable;
  variable.name = join_path(path_, owned.name);
  if (!owned.initializer) return;
  variable.initializer = [fill = owned.initializer, stream = hash_name(variable.name)](
                             Tensor& target, std::uint64_t seed) {
    fill(target, combine(seed, stream));
  };
}

void LayerBase::adopt_children() {
  const std::vector<Layer> layers = without_repeats(children());
  std::unordered_set<std::string> taken;
  const auto is_taken = [&](const std::string& name) { return taken.contains(name); };
  for (const Layer& child : layers) {
    if (!child->named_by_caller_) continue;
    require(taken.insert(child->name_).second,
            "{}two layers are called {}; give one of them another name", where(), child->name_);
  }
  const auto settled = [&](const LayerBase& child) {
    return !child.named_by_caller_ && child.holder_ != nullptr && !child.name_.empty();
  };
  std::unordered_set<const LayerBase*> kept;
  for (const Layer& child : layers) {
    if (settled(child.base()) && taken.insert(child->name_).second) kept.insert(&child.base());
  }
  for (const Layer& child : layers) {
    if (child->holder_ == nullptr) child->holder_ = this;
    std::string path = child->path_;
    if (!child->named_by_caller_ && !kept.contains(&child.base())) {
      const std::string old = child->name_;
      child->name_ = unique_name(snake_case(child->kind()), is_taken);
      taken.insert(child->name_);
      if (!path.empty()) path = path.substr(0, path.size() - old.size()) + child->name_;
    }
    if (child->holder_ == this) path = join_path(path_, child->name_);
    if (path != child->path_) child->set_path(std::move(path));
  }
}

void LayerBase::check_inputs(std::span<const ValueType> inputs) const {
  const bool same = std::equal(inputs.begin(), inputs.end(), built_for_.begin(), built_for_.end(),
                               same_apart_from_batch);
  require(same, "{}was built for {}, got {}", where(), types_without_batch(built_for_),
          types_without_batch(inputs));
}

void LayerBase::ensure_built(std::span<const ValueType> inputs) {
  for (const ValueType& input : inputs) {
    require(input.shape.rank() >= 1, "{}expects axis 0 to be the batch, got the scalar {}", where(),
            input.str());
  }
  if (built_) {
    // A layer without variables works on any input that it can be built for.
    if (!variables_.empty()) check_inputs(inputs);
    return;
  }
  settle_name(nullptr);
  try {
    build(inputs);
  } catch (...) {
    variables_.clear();
    throw;
  }
  built_ = true;
  built_for_.assign(inputs.begin(), inputs.end());
  adopt_children();
  if (!trainable_) set_trainable(false);
}

Value LayerBase::trace(std::span<const Value> inputs, const CallOptions& options) {
  require(!inputs.empty(), "{}was called without an input", where());
  for (const Value& input : inputs) {
    require(input.defined(), "{}was called on an undefined value", where());
  }
  Graph& graph = inputs[0].graph();
  settle_name(&graph);
  ensure_built(types_of(inputs));
  const Graph::NameScope scope(graph, path_.empty() ? "" : name_);
  const Graph::NameScope mark(graph, checkpoint_ ? kCheckpointScope : "");
  return call(inputs, options);
}

Layer checkpoint(Layer layer) {
  layer->set_checkpoint(true);
  return layer;
}

VariableRef LayerBase::add_variable(const std::string& name, Shape shape, VariableOptions options) {
  auto variable = std::make_shared<Variable>();
  variable->dtype = options.dtype;
  variable->shape = std::move(shape);
  variable->trainable = options.trainable;
  variables_.push_back(
      {variable, name, std::move(options.initializer), std::move(options.regularizer)});
  name_variable(variables_.back());
  return variable;
}

std::vector<VariableRef> LayerBase::variables() const {
  std::vector<VariableRef> all;
  for (const Owned& owned : variables_) all.push_back(owned.variable);
  for (const Layer& child : without_repeats(children())) {
    for (VariableRef& variable : child->variables()) all.push_back(std::move(variable));
  }
  std::unordered_set<const Variable*> seen;
  std::erase_if(all, [&](const VariableRef& v) { return !seen.insert(v.get()).second; });
  return all;
}

std::vector<VariableRef> LayerBase::trainable_variables() const {
  if (!trainable_) return {};
  std::vector<VariableRef> all;
  for (const Owned& owned : variables_) {
    if (owned.variable->trainable) all.push_back(owned.variable);
  }
  for (const Layer& child : without_repeats(children())) {
    for (VariableRef& variable : child->trainable_variables()) all.push_back(std::move(variable));
  }
  std::unordered_set<const Variable*> seen;
  std::erase_if(all, [&](const VariableRef& v) { return !seen.insert(v.get()).second; });
  return all;
}

void LayerBase::set_trainable(bool trainable) {
  trainable_ = trainable;
  for (const Layer& child : children()) child->set_trainable(trainable);
}

std::vector<Value> LayerBase::losses(Graph& graph) const {
  std::vector<Value> losses;
  std::unordered_set<const LayerBase*> seen;
  const std::function<void(const LayerBase&)> visit = [&](const LayerBase& layer) {
    if (!layer.trainable_ || !seen.insert(&layer).second) return;
    for (const Owned& owned : layer.variables_) {
      if (!owned.regularizer) continue;
      const Graph::NameScope scope(graph, owned.variable->name + "/regularizer");
      losses.push_back(owned.regularizer(graph.variable(owned.variable)));
    }
    for (const Layer& child : layer.children()) visit(child.base());
  };
  visit(*this);
  return losses;
}

ValueType Symbol::type() const {
  require(defined(), "[symbol] is empty: start from Input or from a layer called on a Symbol");
  return node_->type;
}

LayerBase& Layer::base() const {
  require(base_ != nullptr, "[layer] an empty Layer was used; assign it one first");
  return *base_;
}

Value Layer::operator()(Value input, const CallOptions& options) const {
  return base().trace({&input, 1}, options);
}

Value Layer::operator()(std::span<const Value> inputs, const CallOptions& options) const {
  return base().trace(inputs, options);
}

Value Layer::operator()(std::initializer_list<Value> inputs, const CallOptions& options) const {
  return base().trace({inputs.begin(), inputs.size()}, options);
}

Symbol Layer::operator()(const Symbol& input) const {
  return (*this)(std::vector<Symbol>{input});
}

// Finds the type of the result by tracing the layer into a temporary graph.
Symbol Layer::operator()(const std::vector<Symbol>& inputs) const {
  Graph scratch;
  std::vector<Value> values;
  for (const Symbol& input : inputs) {
    values.push_back(scratch.input(fmt::format("{}", values.size()), input.type()));
  }
  const ValueType type = base().trace(values, {}).type();
  return Symbol(std::make_shared<const SymbolNode>(
      SymbolNode{.layer = *this, .inputs = inputs, .type = type, .name = ""}));
}

Symbol Input(InputOptions options) {
  std::vector<std::int64_t> dims = {1};
  dims.insert(dims.end(), options.shape.dims().begin(), options.shape.dims().end());
  return Symbol(
      std::make_shared<const SymbolNode>(SymbolNode{.layer = {},
                                                    .inputs = {},
                                                    .type = {options.dtype, Shape(std::move(dims))},
                                                    .name = std::move(options.name)}));
}

Symbol Input(Extents shape, InputOptions options) {
  return Input(with_argument("input", "shape", &InputOptions::shape, Shape(std::move(shape.values)),
                             std::move(options)));
}

Layer::Layer(const Symbol& input) {
  require(input.defined() && input.node().layer.shared() == nullptr,
          "[sequential] only an Input can be used as a layer, not the output of a layer: use "
          "Model(inputs, outputs)");
  const ValueType type = input.type();
  const std::span<const std::int64_t> sample = type.shape.dims().subspan(1);
  *this = InputLayer({.shape = Shape(std::vector<std::int64_t>(sample.begin(), sample.end())),
                      .dtype = type.dtype,
                      .name = input.node().name});
}

}  // namespace lockstep
