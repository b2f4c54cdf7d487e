// Place, the first of two passes that distribute a step: derives the placement of every value
// (graph/placement.h), by each op's rule, and rejects a step that would not mean the same on all
// ranks.
//
// Changes of placement are nodes that already exist: Optimizer::apply writes the all-reduce of
// gradients (Partial → Replicated) and of their weight, because what it computes from them (a
// global norm, the loss scale's decision, the division) comes between the all-reduce and the
// update, and because a custom training loop decides when gradients are reduced by calling it.
// Place derives the placements around these nodes and checks them: an update that reads gradients
// which were not reduced, and a replicated variable that is assigned a rank's own value, are
// errors. Place itself writes only the placements of slots and parameters: with Sharded(flat) every
// rank keeps those of its own slice of each bucket (slots: ZeRO 1 and 2; both: ZeRO 3), and Bucket
// writes the collectives for it.
//
// A constant, and what is broadcast from it, is assumed to be Replicated. One that depends on the
// size of a rank's piece of the batch (a number of samples) has to be all-reduced before an update
// reads it, as `apply` does.
#pragma once

#include <map>
#include <string>

#include "lockstep/passes/pass.h"

namespace lockstep {

struct PlaceOptions {
  int ranks = 1;  // along the axis `data`
  // Inputs, by name, whose placement is not input_placement's.
  std::map<std::string, Placement> inputs = {};
  // Of optimizers' slots: as their variables say, or Sharded(flat) for all of which ranks can have
  // slices: an update whose gradients were not reduced as a list, or with slots that something else
  // reads, stays whole (UsageError if its variables say otherwise).
  Placement slots = {};
  // Of the parameters of those updates: Sharded(flat) only together with slots.
  Placement parameters = {};
};

// Inputs with dimensions are slices of the batch, Sharded(0); the rank's number, its offset in the
// batch and other scalars differ per rank, Local.
Placement input_placement(const std::string& name, const ValueType& type);

// On one rank every node that is written for ranks is removed.
class PlacePass final : public Pass {
 public:
  explicit PlacePass(PlaceOptions options) : options_(std::move(options)) {}
  std::string_view name() const override { return "place"; }
  void run(Graph& graph) override;

 private:
  PlaceOptions options_;
};

// Writes the placement of every value on an axis into the graph. UsageError, naming op, layer,
// placements and what to do, if an op has no rule or does not accept its inputs.
void derive_placements(Graph& graph, std::string_view axis,
                       const std::map<std::string, Placement>& inputs = {});

}  // namespace lockstep
