// Normalisation. Parameters and statistics have the input's dtype, or are all f32 beside an input
// in 16 bits.
#pragma once

#include "lockstep/graph/graph.h"

namespace lockstep {

struct BatchNormResult {
  Value y;
  Value mean;      // (C), of this batch
  Value variance;  // (C), biased
};

// Training: statistics of the batch over all axes but the last. gamma, beta: (C). The fusion pass
// may set the attribute activation = "relu" on the node and give it a fourth input, the residual
// that is added before it. The gradient node is (dy, x, mean, variance, gamma) → (dx, dgamma,
// dbeta); with the activation fused it reads the output too: (dy, x, mean, variance, gamma, y), and
// with the residual has its gradient as a fourth output.
//
// Extras that a backend may offer, each an attribute of the node:
//   batch_norm       statistics: the last two inputs are the sums of x and of its squares, (C)
//   each,
//                      in f32, and x is not swept for them
//   batch_norm       bits: the last output is y's sign, a bit an element, (…, C / 8) bytes: the
//                      first of eight channels in the lowest bit
//   batch_norm       projection: the residual is a batch norm too, with the same epsilon, and comes
//                      as its (x, gamma, beta); its mean and variance are the fourth and fifth
//                      output. projected_statistics: sums for it, as above, behind those for x
//   batch_norm       pool: with ReLU and without a residual, y goes through max_pool, whose
//                      attributes the node has; the last two outputs are the winners' places and
//                      the elements of x that won. Where rounding makes y equal, the larger won
//   batch_norm_grad  bits: those in place of y
//   batch_norm_grad  projection: of that, (x, mean, variance, gamma) of the residual behind y; its
//                      (dx, dgamma, dbeta) take the place of the residual's gradient
//   batch_norm_grad  beta: beta in place of y, whose sign is found from x; without a residual
//   batch_norm_grad  pool: of that, with beta, and behind it the places and the elements of x that
//                      won; dy is the gradient of what was pooled
//   batch_norm_grad  summands: with a residual or pool, dy is the first input and the last one,
//                      added up
BatchNormResult batch_norm(Value x, Value gamma, Value beta, double epsilon = 1e-3);
// Inference: with given statistics. The fusion pass may set activation = "relu" here too and give a
// sixth input, the residual; such a node has no gradient.
Value batch_norm_inference(Value x, Value gamma, Value beta, Value mean, Value variance,
                           double epsilon = 1e-3);

// Over the last axis; gamma, beta: (C). The node's outputs: y, and of each row the mean and the
// reciprocal deviation, which the gradient reads: (dy, x, mean, rstd, gamma) → (dx, dgamma, dbeta).
Value layer_norm(Value x, Value gamma, Value beta, double epsilon = 1e-3);

}  // namespace lockstep
