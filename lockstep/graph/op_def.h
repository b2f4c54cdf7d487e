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

// A node as its gradient rule sees it. `grads` has one entry an output; not defined where nothing
// depends on that output.
struct GradCall {
  Graph& graph;
  const Attrs& attrs;
  std::span<const Value> inputs;
  std::span<const Value> outputs;
  std::span<const Value> grads;
  std::span<const bool> needed;  // of each input: whether anybody wants its gradient
};

struct Cost {
  double flops = 0;
  double bytes = 0;  // read and written
};

// What an op reads and writes where a step runs in mixed precision (passes/precision.h). It is
// about f32 values alone: integers, bools and f64 stay what they are. Whatever is read, a kernel
// adds up in f32.
enum class PrecisionRule : std::uint8_t {
  Full,    // f32: inputs of 16 bits are widened
  Half,    // 16 bits: inputs in f32 are rounded
  Follow,  // 16 bits where what was computed before it comes in 16 bits, else f32
  Table,   // f32, its result rounded to 16 bits: rows of a table that stays in f32
};

struct OpDef {
  Op op = Op::Input;
  std::string_view name;
  PrecisionRule precision = PrecisionRule::Full;
  // Shape rule: the output types; throws UsageError (without the op's name) where inputs misfit.
  std::vector<ValueType> (*infer)(const OpCall& call) = nullptr;
  // Gradient rule: one value an input, not defined where it has none. Null: not differentiable.
  std::vector<Value> (*gradient)(const GradCall& call) = nullptr;
  // Null: no arithmetic worth counting; bytes are those of the inputs and outputs.
  Cost (*cost)(const OpCall& call, std::span<const ValueType> outputs) = nullptr;
  // (input, output) pairs that may share memory: the kernel reads an element before it writes it.
  std::vector<std::pair<int, int>> in_place = {};
  bool each_in_place = false;  // the same for input i and output i, of however many
  // The same where the pairs depend on the node.
  std::vector<std::pair<int, int>> (*find_in_place)(const OpCall& call) = nullptr;
  bool view = false;    // output 0 is input 0's memory under another shape
  bool effect = false;  // changes variables; never removed
  // Inputs that stay in f32 where the op computes in 16 bits: parameters and statistics.
  std::vector<int> f32_inputs = {};
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
std::vector<OpDef> collective_ops();
std::vector<OpDef> pointwise_ops();
std::vector<OpDef> layout_ops();

}  // namespace lockstep
