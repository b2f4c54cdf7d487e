// Values of the same layout: ops that may process elements in any order accept any order of axes,
// row-major or not, as long as all values have the same one.
#pragma once

#include "lockstep/kernels/kernel.h"

namespace lockstep {

// Whether each operand has the output's shape or is one element: everything can then be treated as
// one row, and the layout does not matter as long as all have the same.
bool is_one_row(const KernelCall& call);

// Whether everything is row-major, or is_one_row and all have the same order of axes.
bool same_layout(const KernelCall& call);

// The layout of the first operand that is not row-major, for all that have the output's shape.
NodeLayouts follow_operands(const KernelCall& call);

// For an op whose only output is row-major whatever its input's layout: the input keeps its layout.
NodeLayouts keep_input_layout(const KernelCall& call);

}  // namespace lockstep
