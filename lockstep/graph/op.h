// The kinds of nodes. What each computes is written at its function in ops/; what is known about
// it (shape, gradient and cost rules) stands in its OpDef, in the same file.
#pragma once

#include <cstdint>

namespace lockstep {

enum class Op : std::uint8_t {
  // leaves
  Input,     // fed before each step
  Variable,  // state that outlives a step
  Constant,
  // elementwise (ops/elementwise.h)
  Add,
  Sub,
  Mul,
  Div,
  Pow,
  Maximum,
  Minimum,
  Equal,
  NotEqual,
  Less,
  LessEqual,
  Greater,
  GreaterEqual,
  LogicalAnd,
  LogicalOr,
  LogicalNot,
  Neg,
  Abs,
  Sign,
  Exp,
  Log,
  Sqrt,
  Rsqrt,
  Square,
  Activation,      // {kind, alpha}
  ActivationGrad,  // {kind, alpha}: (dy, x or y)
  Cast,            // {dtype}
  Select,          // (condition, a, b)
  // reductions (ops/reduce.h)
  ReduceSum,
  ReduceMean,
  ReduceMax,
  ArgMax,
  // moving elements about (ops/shape.h)
  Reshape,
  Transpose,
  Concat,
  Split,
  Slice,
  Pad,
  BroadcastTo,
  OneHot,
  Gather,
  GatherGrad,
  // products (ops/matmul.h, ops/conv.h)
  MatMul,
  Conv2D,
  Conv2DGradInput,
  Conv2DGradFilter,
  // windows (ops/pool.h)
  MaxPool,
  MaxPoolGrad,
  AvgPool,
  AvgPoolGrad,
  // normalisation (ops/norm.h)
  BatchNorm,
  BatchNormGrad,
  BatchNormInference,
  LayerNorm,
  LayerNormGrad,
  // random (ops/random.h)
  Dropout,
  // probabilities and losses (ops/softmax.h)
  Softmax,
  SoftmaxGrad,
  SparseCrossEntropy,
  SparseCrossEntropyGrad,
  CrossEntropy,
  CrossEntropyGrad,
  // state (ops/state.h)
  Assign,
  // over lists of parameters, one sweep each (ops/update.h)
  Update,
  UpdateNorms,
  GlobalNorm,
  RoundGradients,  // {dtype, count} (ops/error_feedback.h)
  // between ranks (ops/collective.h); all have {group}
  AllReduce,      // {after}
  ReduceScatter,  // {rank, size}
  AllGather,      // {rank, size, shapes, after}
  Broadcast,      // {root, after}
  OwnSlice,       // {rank, size}: no communication
  ForEachRank,    // no communication
  // put in by the pass that joins elementwise nodes (ops/pointwise.h)
  Pointwise,        // {program, count, scalars, results}
  PointwiseAssign,  // {…, targets}
  // put in by the layout pass
  Reorder,
};

}  // namespace lockstep
