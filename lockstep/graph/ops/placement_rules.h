// What the placement rules of several op families share. A rule says the truth about what a rank
// computes from the values that it has, and refuses what it does not know.
//
// On the axis `data` every rank runs the whole step on its own samples. There a result that is
// neither a slice nor a summand of anything (a quotient of two partial sums, a mean over this
// rank's samples) is simply the rank's own: Local. It takes an explicit reduction to become
// Replicated. On any other axis such a node is refused: it would not compute what the layer says.
//
// Shapes are those of this rank. A replicated operand meets a slice as if every rank had cut out
// its own part: it was broadcast along that dimension, or is applied to each rank's samples alike.
#pragma once

#include <optional>
#include <vector>

#include "lockstep/graph/op_def.h"

namespace lockstep {

// Local on `data`; UsageError, with the placements, on other axes.
std::vector<Placement> place_own(const PlaceCall& call);

// What is the same for every op: all Replicated stays so, anything Local makes all outputs Local,
// slices of a bucket are refused. None where the op has to decide.
std::optional<std::vector<Placement>> place_settled(const PlaceCall& call);

// Elementwise ops, operands aligned at their last dimensions. A slice stays one; all but the first
// also keep what is Partial where the op commutes with adding up.
std::vector<Placement> place_elementwise(const PlaceCall& call);
std::vector<Placement> place_linear(const PlaceCall& call);    // every operand: add, neg, cast
std::vector<Placement> place_product(const PlaceCall& call);   // one of them: mul
std::vector<Placement> place_quotient(const PlaceCall& call);  // the first: div
std::vector<Placement> place_select(const PlaceCall& call);    // the second and third
std::vector<Placement> place_maximum(const PlaceCall& call);
std::vector<Placement> place_minimum(const PlaceCall& call);

// Ops that treat samples apart from one another, and sum up over them in some outputs.
struct SampleRule {
  int last_dims = 1;                         // a slice is along none of so many last dimensions
  std::vector<std::size_t> parameters = {};  // inputs that must be Replicated
  std::vector<std::size_t> statistics = {};  // inputs that may also be each rank's own
  std::vector<std::size_t> sums = {};        // outputs summed up over samples: Partial
  std::vector<std::size_t> own = {};         // outputs that are each rank's own: Local
};
std::vector<Placement> place_samples(const PlaceCall& call, const SampleRule& rule);

// Only along dimension 0: images and their windows.
std::vector<Placement> place_images(const PlaceCall& call, const SampleRule& rule = {});

}  // namespace lockstep
