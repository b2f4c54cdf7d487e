// Normalisation. Parameters and statistics have the input's dtype, or are all f32 if the input has
// 16 bits.
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
// that is added before ReLU. The gradient node is (dy, x, mean, variance, gamma) → (dx, dgamma,
// dbeta). With the activation fused it also reads the output: (dy, x, mean, variance, gamma, y).
// With a residual, the fourth output is the residual's gradient.
//
// Extras that a backend may offer, each an attribute of the node:
//   batch_norm       statistics: the last two inputs are the sums of x and of its squares, (C) each
//                      in f32, so that the kernel need not read x for them
//   batch_norm       bits: the last output is y's sign, one bit per element, (…, C / 8) bytes: the
//                      first of eight channels in the lowest bit
//   batch_norm       projection: the residual is itself a batch norm, with the same epsilon, given
//                      by its inputs (x, gamma, beta); its mean and variance are the fourth and
//                      fifth output. projected_statistics: its sums, as above, after those of x
//   batch_norm       pool: with ReLU and without a residual, y goes through max_pool, whose
//                      attributes the node has; the last two outputs are the argmax indices and
//                      the elements of x there. If rounding makes elements of y equal, the one
//                      that was largest before rounding counts
//   batch_norm_grad  bits: the bits replace y
//   batch_norm_grad  projection: the gradient of the above; (x, mean, variance, gamma) of the
//                      residual's batch norm follow y, and its (dx, dgamma, dbeta) replace the
//                      residual's gradient
//   batch_norm_grad  beta: beta replaces y, whose sign is computed from x; without a residual
//   batch_norm_grad  pool: the gradient of the above, with beta, followed by the argmax indices and
//                      the elements of x there; dy is the gradient of the pooled result
//   batch_norm_grad  summands: with a residual or pool, dy is the sum of the first and the last
//                      input
BatchNormResult batch_norm(Value x, Value gamma, Value beta, double epsilon = 1e-3);
// Inference: with given statistics. The fusion pass may set activation = "relu" here too and add a
// sixth input, the residual; such a node has no gradient.
Value batch_norm_inference(Value x, Value gamma, Value beta, Value mean, Value variance,
                           double epsilon = 1e-3);

// Over the last axis; gamma, beta: (C). The node's outputs: y, and for each row the mean and the
// reciprocal standard deviation, which the gradient reads: (dy, x, mean, rstd, gamma) → (dx,
// dgamma, dbeta).
Value layer_norm(Value x, Value gamma, Value beta, double epsilon = 1e-3);

}  // namespace lockstep
