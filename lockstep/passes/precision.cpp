#include "lockstep/passes/precision.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/half.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/elementwise.h"

namespace lockstep {
namespace {

// Whether a 16-bit dtype can represent a constant, and what is multiplied by it: no number becomes
// infinite, and none is below the smallest normal number, where precision is lost.
bool fits(const Tensor& constant, DType dtype) {
  const float least = dtype == DType::F16 ? 0x1p-14F : std::numeric_limits<float>::min();
  const Tensor rounded = constant.cast(dtype).cast(DType::F32);
  const std::span<const float> before = constant.values<float>();
  const std::span<const float> after = rounded.values<float>();
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (std::isfinite(before[i]) != std::isfinite(after[i])) return false;
    if (before[i] != 0 && std::abs(before[i]) < least) return false;
  }
  return true;
}

class Rounding {
 public:
  Rounding(const Graph& graph, DType dtype, MixedPrecisionOptions options)
      : graph_(graph),
        small_(dtype),
        options_(options),
        rewriter_(graph),
        fixed_(static_cast<std::size_t>(graph.value_count()), false) {
    for (const Node& node : graph.nodes()) {
      if (node.op != Op::AllReduce && node.op != Op::Update) continue;
      widened_early_.insert(node.inputs.begin(), node.inputs.end());
    }
  }

  Graph run() {
    for (const Node& node : graph_.nodes()) {
      write(node);
      for (ValueId id : node.outputs) {
        fixed_[static_cast<std::size_t>(id)] = depends_on_fixed(node);
        if (widened_early_.contains(id)) in(id, graph_.type(id).dtype);
      }
    }
    for (const auto& [name, id] : graph_.outputs()) {
      rewriter_.set(id, in(id, graph_.type(id).dtype));
    }
    return rewriter_.finish();
  }

 private:
  bool fixed(ValueId id) const { return fixed_[static_cast<std::size_t>(id)]; }

  // Whether a node's results depend only on variables and constants.
  bool depends_on_fixed(const Node& node) const {
    if (node.op == Op::Variable || node.op == Op::Constant) return true;
    return !node.inputs.empty() &&
           std::ranges::all_of(node.inputs, [&](ValueId id) { return fixed(id); });
  }

  void write(const Node& node) {
    if (node.inputs.empty()) {
      rewriter_.copy(node);
      if (node.op == Op::Input && options_.round_inputs) round_results(node);
      return;
    }
    if (node.op == Op::Cast) return write_cast(node);
    switch (op_def(node.op).precision) {
      case PrecisionRule::Full:
        return write_in(node, DType::F32);
      case PrecisionRule::Half:
        return write_in(node, small_);
      case PrecisionRule::Follow:
        return write_in(node, inputs_are_small(node) ? small_ : DType::F32);
      case PrecisionRule::Table:
        if (inputs_are_small(node)) return write_in(node, small_);
        write_in(node, DType::F32);
        return round_results(node);
    }
  }

  void round_results(const Node& node) {
    for (ValueId id : node.outputs) {
      if (graph_.type(id).dtype == DType::F32) rewriter_.set(id, in(id, small_));
    }
  }

  // Whether the precision rule applies to an input.
  bool rule_applies(const Node& node, std::size_t i) const {
    const std::vector<int>& stay = op_def(node.op).f32_inputs;
    return graph_.type(node.inputs[i]).dtype == DType::F32 &&
           std::ranges::find(stay, static_cast<int>(i)) == stay.end();
  }

  // Whether all computed inputs of a node have 16 bits, and the others can be rounded.
  bool inputs_are_small(const Node& node) const {
    bool any = false;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      if (!rule_applies(node, i)) continue;
      const ValueId id = node.inputs[i];
      if (fixed(id)) {
        const Node& producer = graph_.producer(id);
        if (producer.op == Op::Constant && !fits(producer.constant, small_)) return false;
        continue;
      }
      if (rewriter_.map(id).dtype() != small_) return false;
      any = true;
    }
    return any;
  }

  void write_in(const Node& node, DType dtype) {
    std::vector<Value> inputs;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId id = node.inputs[i];
      inputs.push_back(in(id, rule_applies(node, i) ? dtype : graph_.type(id).dtype));
    }
    rewriter_.copy_as(node, inputs, node.attrs);
  }

  void write_cast(const Node& node) {
    const ValueId id = node.inputs[0];
    const DType to = graph_.type(node.outputs[0]).dtype;
    const Value source = before_rounding(rewriter_.map(id));
    if (source.dtype() == to) return rewriter_.set(node.outputs[0], source);
    if (to == DType::F32) return rewriter_.set(node.outputs[0], in(id, to));
    rewriter_.copy_as(node, {&source, 1}, node.attrs);
  }

  Value before_rounding(Value value) const {
    const auto found = unrounded_.find(value.id());
    return found == unrounded_.end() ? value : found->second;
  }

  // The replacement of a value of the source, in a dtype.
  Value in(ValueId id, DType dtype) {
    const Value value = rewriter_.map(id);
    if (value.dtype() == dtype) return value;
    const Value source = before_rounding(value);
    if (source.dtype() == dtype) return source;
    Value& known = casts_[{source.id(), dtype}];
    if (known.defined()) return known;
    const Node& producer = graph_.producer(id);
    Graph::NameScope scope(rewriter_.target(), producer.name);
    known = producer.op == Op::Constant ? rewriter_.target().constant(producer.constant.cast(dtype))
                                        : cast(source, dtype);
    if (is_small_float(dtype)) unrounded_.emplace(known.id(), source);
    return known;
  }

  const Graph& graph_;
  DType small_;
  MixedPrecisionOptions options_;
  Rewriter rewriter_;
  std::vector<bool> fixed_;          // by value: depends only on variables and constants
  std::set<ValueId> widened_early_;  // read by all-reduces and updates
  std::map<std::pair<ValueId, DType>, Value> casts_;  // of values of the target
  std::map<ValueId, Value> unrounded_;  // by rounded value of the target: the original
};

}  // namespace

MixedPrecision::MixedPrecision(DType dtype, MixedPrecisionOptions options)
    : dtype_(dtype), options_(options) {
  ensure(is_small_float(dtype), "mixed precision in {}", name_of(dtype));
}

void MixedPrecision::run(Graph& graph) {
  graph = Rounding(graph, dtype_, options_).run();
}

std::optional<DType> precision_by_name(std::string_view caller, std::string_view name) {
  if (name == "float32") return std::nullopt;
  if (name == "mixed_float16") return DType::F16;
  if (name == "mixed_bfloat16") return DType::BF16;
  fail<UsageError>(
      "[{}] there is no precision called '{}'; there are: float32, mixed_float16, mixed_bfloat16",
      caller, name);
}

}  // namespace lockstep
