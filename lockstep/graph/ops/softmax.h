// Probabilities, and the losses that start from logits.
#pragma once

#include "lockstep/graph/graph.h"

namespace lockstep {

Value softmax(Value x);      // over the last axis
Value log_softmax(Value x);  // x - max - log(sum(exp(x - max))), from other ops

// Per example: -log softmax(logits)[label], stable. logits (…, C), labels (…) of integers. A label
// outside [0, C) is a DataError when the step runs. The node's second output is the softmax, which
// the gradient reads. A pass may extend the node: with a third input, dloss, the second output is
// the gradient of the logits, and with the attribute sum the first is the sum of all losses.
Value sparse_cross_entropy(Value logits, Value labels);
// Per example: -sum(labels * log softmax(logits)). labels (…, C). Second output as above.
Value cross_entropy(Value logits, Value labels);
// Elementwise: softplus(x) - x * z, the stable form, from other ops.
Value sigmoid_cross_entropy(Value logits, Value labels);

}  // namespace lockstep
