// Values that lie alike: ops that go through all elements in any order take values in any one order
// of the axes, row-major or not.
#pragma once

#include "lockstep/kernels/kernel.h"

namespace lockstep {

// Whether each operand has the output's shape or is one element: the whole is one row, and layouts
// make no difference as long as all are the same.
bool is_one_row(const KernelCall& call);

// Whether everything is row-major, or one row in one order of the axes; of whatever dtypes.
bool lies_alike(const KernelCall& call);

// The layout of the first operand that has one of its own, for all that have the output's shape.
NodeLayouts follow_operands(const KernelCall& call);

// Of an op whose one output is row-major whatever the order of its input: that order as it is.
NodeLayouts keep_input_layout(const KernelCall& call);

}  // namespace lockstep
