#include "lockstep/nn/logits.h"

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/remark.h"
#include "lockstep/graph/ops/shape.h"

namespace lockstep {
namespace {

// The value that a value was computed from by casts between floats and reshapes.
struct Origin {
  Value value;
  bool rows_kept = true;  // no reshape on the way changed the last axis
};

Origin origin_of(Value x) {
  const Graph& graph = x.graph();
  Origin origin{x};
  for (;;) {
    const Node& node = graph.producer(origin.value.id());
    if (node.op != Op::Cast && node.op != Op::Reshape) return origin;
    const Value before(&x.graph(), node.inputs[0]);
    if (!is_floating(before.dtype())) return origin;
    if (node.op == Op::Reshape) {
      const Shape &from = before.shape(), &to = origin.value.shape();
      origin.rows_kept = origin.rows_kept && from.rank() > 0 && to.rank() > 0 && from[-1] == to[-1];
    }
    origin.value = before;
  }
}

bool is_sigmoid(const Node& node) {
  return node.op == Op::Activation && node.attrs.text("kind") == "sigmoid";
}

// Whether it is a layer's product with its kernel, without an activation.
bool is_linear(const Graph& graph, const Node& node) {
  const bool product = node.op == Op::MatMul || node.op == Op::Conv2D;
  return product && !node.attrs.has("activation") &&
         graph.producer(node.inputs[1]).op == Op::Variable;
}

const char* name_of(Squashing squashing) {
  return squashing == Squashing::Softmax ? "softmax" : "sigmoid";
}

}  // namespace

Scores scores_of(std::string_view what, Value predictions, Squashing expected, int axis,
                 bool from_logits) {
  Graph& graph = predictions.graph();
  const Origin origin = origin_of(predictions);
  const Node made_by = graph.producer(origin.value.id());
  const bool softmax = made_by.op == Op::Softmax, sigmoid = is_sigmoid(made_by);
  const bool last = axis == predictions.shape().rank() - 1;
  const bool matches =
      expected == Squashing::Softmax ? softmax && origin.rows_kept && last : sigmoid;
  Scores scores{.values = predictions, .logits = from_logits};
  if (matches) {
    const Value logits = cast(Value(&graph, made_by.inputs[0]), predictions.dtype());
    scores.values = full_precision(
        logits.shape() == predictions.shape() ? logits : reshape(logits, predictions.shape()));
    scores.logits = true;
  }
  if (from_logits && (softmax || sigmoid)) {
    scores.values = with_remark(
        scores.values,
        fmt::format(
            "the loss {} was told from_logits = true, but {} returns the probabilities of a "
            "{}: {}remove from_logits or the activation",
            what, made_by.name.empty() ? "the model" : made_by.name,
            softmax ? "softmax" : "sigmoid",
            matches ? "the loss is computed from the logits before it; " : ""));
  } else if (!from_logits && is_linear(graph, made_by)) {
    scores.values = with_remark(
        scores.values,
        fmt::format("the loss {} expects probabilities, but {} has no activation after its "
                    "weights: set from_logits = true in the loss, or activation = \"{}\" in the "
                    "layer",
                    what, made_by.name.empty() ? "the model" : made_by.name, name_of(expected)));
  }
  return scores;
}

}  // namespace lockstep
