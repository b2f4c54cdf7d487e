// What a cross entropy is computed from. A saturated softmax or sigmoid has no gradient left, so a
// loss of probabilities goes through the activation that made them, back to its logits.
#pragma once

#include <string_view>

#include "lockstep/graph/graph.h"

namespace lockstep {

enum class Squashing { Softmax, Sigmoid };

struct Scores {
  Value values;
  bool logits = false;  // else probabilities
};

// The predictions of the loss `what`, whose probabilities `expected` makes over `axis` (of sigmoid:
// over none), or, where that activation made them, directly or under casts and reshapes, its
// input. It leaves remarks in the graph where the predictions are surely not what from_logits says:
// probabilities given for logits (the loss is then computed from the logits behind them, as in
// Keras), or the plain output of a dense or convolution layer given for probabilities.
Scores scores_of(std::string_view what, Value predictions, Squashing expected, int axis,
                 bool from_logits);

}  // namespace lockstep
