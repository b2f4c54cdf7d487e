#include "lockstep/kernels/cuda/primitives/same_layout.h"

#include "lockstep/kernels/cuda/cuda.h"

namespace lockstep {
namespace {

bool has_output_shape(const KernelCall& call, std::size_t input) {
  return call.in_shape(input) == call.out_shape(0);
}

}  // namespace

bool is_one_row(const KernelCall& call) {
  for (std::size_t i = 0; i < call.in_count(); ++i) {
    if (!has_output_shape(call, i) && call.in_shape(i).elements() != 1) return false;
  }
  return true;
}

bool same_layout(const KernelCall& call) {
  if (call.row_major()) return true;
  const Layout& layout = call.output(0).layout;
  if (!layout.blocks.empty() || !is_one_row(call)) return false;
  for (std::size_t i = 0; i < call.in_count(); ++i) {
    if (has_output_shape(call, i) && call.input(i).layout != layout) return false;
  }
  return true;
}

NodeLayouts follow_operands(const KernelCall& call) {
  if (!is_one_row(call)) return {};
  Layout chosen;
  for (std::size_t i = 0; i < call.in_count(); ++i) {
    const Layout& layout = call.input(i).layout;
    if (has_output_shape(call, i) && chosen.row_major() && layout.blocks.empty()) chosen = layout;
  }
  if (chosen.row_major()) return {};
  NodeLayouts wish{std::vector<Layout>(call.in_count()), {chosen}};
  for (std::size_t i = 0; i < call.in_count(); ++i) {
    if (has_output_shape(call, i)) wish.inputs[i] = chosen;
  }
  return wish;
}

NodeLayouts keep_input_layout(const KernelCall& call) {
  const Layout& layout = call.input(0).layout;
  if (layout.row_major() || !layout.blocks.empty()) return {};
  return {{layout}, std::vector<Layout>(1)};
}

}  // namespace lockstep
