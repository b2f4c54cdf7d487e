// What a cross entropy is computed from. A saturated softmax or sigmoid has no gradient, so a loss
// of probabilities is computed from the logits in front of the activation.
#pragma once

#include <string_view>

#include "lockstep/graph/graph.h"

namespace lockstep {

enum class Squashing { Softmax, Sigmoid };

struct Scores {
  Value values;
  bool logits = false;  // else probabilities
};

// The predictions of the loss `what` or, if they are the output of the activation `expected` over
// `axis` (a sigmoid has none), directly or through casts and reshapes, the input of that
// activation. Leaves remarks in the graph if the predictions certainly contradict from_logits:
// probabilities instead of logits (the loss is then computed from their logits, as in Keras), or
// the plain output of a dense or convolution layer instead of probabilities.
Scores scores_of(std::string_view what, Value predictions, Squashing expected, int axis,
                 bool from_logits);

}  // namespace lockstep
