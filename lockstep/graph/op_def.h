// OpDef: what is known about an op apart from how to compute it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/graph/graph.h"

namespace lockstep {

// A node as the shape and cost rules see it.
struct OpCall {
  std::span<const ValueType> inputs;
  const Attrs& attrs;

  const Shape& shape(std::size_t i) const { return inputs[i].shape; }
  DType dtype(std::size_t i) const { return inputs[i].dtype; }
};

// A node as its gradient rule sees it. `grads` has one entry per output; undefined if nothing
// depends on that output.
struct GradCall {
  Graph& graph;
  const Attrs& attrs;
  std::span<const Value> inputs;
  std::span<const Value> outputs;
  std::span<const Value> grads;
  std::span<const bool> needed;  // of each input: whether anybody wants its gradient
};

// A node as its placement rule sees it, on one axis of the mesh.
struct PlaceCall {
  const Graph& graph;
  const Node& node;
  std::string_view axis;
  std::span<const Placement> inputs;

  const Attrs& attrs() const { return node.attrs; }
  const Shape& shape(std::size_t i) const { return graph.type(node.inputs[i]).shape; }
  const Shape& output(std::size_t i) const { return graph.type(node.outputs[i]).shape; }
  // One of these for every output.
  std::vector<Placement> all(const Placement& placement) const {
    return std::vector<Placement>(node.outputs.size(), placement);
  }
};

struct Cost {
  double flops = 0;
  double bytes = 0;  // read and written
};

// What an op reads and writes when a step runs in mixed precision (passes/precision.h). This
// concerns only f32 values: integers, bools and f64 stay as they are. Kernels always accumulate in
// f32.
enum class PrecisionRule : std::uint8_t {
  Full,    // f32: inputs of 16 bits are widened
  Half,    // 16 bits: inputs in f32 are rounded
  Follow,  // 16 bits if computed inputs are in 16 bits, else f32
  Table,   // f32, its result rounded to 16 bits: rows of a table that stays in f32
};

struct OpDef {
  Op op = Op::Input;
  std::string_view name;
  PrecisionRule precision = PrecisionRule::Full;
  // Shape rule: the output types; throws UsageError (without the op's name) if inputs do not fit.
  std::vector<ValueType> (*infer)(const OpCall& call) = nullptr;
  // Gradient rule: one value per input, undefined if it has none. Null: not differentiable.
  std::vector<Value> (*gradient)(const GradCall& call) = nullptr;
  // Null: no arithmetic worth counting; bytes are those of the inputs and outputs.
  Cost (*cost)(const OpCall& call, std::span<const ValueType> outputs) = nullptr;
  // (input, output) pairs that may share memory: the kernel reads an element before it writes it.
  std::vector<std::pair<int, int>> in_place = {};
  bool each_in_place = false;  // the same for every pair of input i and output i
  // The same where the pairs depend on the node.
  std::vector<std::pair<int, int>> (*find_in_place)(const OpCall& call) = nullptr;
  bool view = false;    // output 0 is input 0's memory under another shape
  bool effect = false;  // changes variables; never removed
  // Inputs that stay in f32 where the op computes in 16 bits: parameters and statistics.
  std::vector<int> f32_inputs = {};
  // Placement rule: the outputs' placements on an axis, from the inputs'; throws UsageError
  // (without the op's name) if it does not accept those. Null: the op is created after placements
  // are derived, and rejected before.
  std::vector<Placement> (*place)(const PlaceCall& call) = nullptr;
};

// The definition of an op; there is one for each.
const OpDef& op_def(Op op);

// The cost of a node by its rule.
Cost cost_of(const Graph& graph, const Node& node);

// The pairs (input, output) of a node that may share memory.
std::vector<std::pair<int, int>> in_place_pairs(const Graph& graph, const Node& node);

// Adds rules for families; each ops/ file exports one such list.
std::vector<OpDef> elementwise_ops();
std::vector<OpDef> reduce_ops();
std::vector<OpDef> shape_ops();
std::vector<OpDef> matmul_ops();
std::vector<OpDef> conv_ops();
std::vector<OpDef> pool_ops();
std::vector<OpDef> norm_ops();
std::vector<OpDef> random_ops();
std::vector<OpDef> softmax_ops();
std::vector<OpDef> state_ops();
std::vector<OpDef> update_ops();
std::vector<OpDef> error_feedback_ops();
std::vector<OpDef> collective_ops();
std::vector<OpDef> pointwise_ops();
std::vector<OpDef> layout_ops();

}  // namespace lockstep
