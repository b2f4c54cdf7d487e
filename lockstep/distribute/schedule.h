// The communication schedule of a step: what its ranks must agree on before they run it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "lockstep/graph/graph.h"

namespace lockstep {

// The collectives of a graph that went through Place and Bucket, one per line, those of each stream
// in the order in which every rank must start them:
//
//   gradients 0: all_reduce data f32 1056: dense_1/kernel (32, 32), dense_1/bias (32), adam ()
//
// its stream and number; kind, group, dtype, elements in memory; and the members with their whole
// shapes and, if they are not row-major, their layouts. Members are named by the parameters that
// gradients and slices belong to, else by the nodes that produce them. It says nothing about the
// rank, so that ranks agree if the texts (or their digests) are equal; layouts are those of the
// graph, so it is taken after layouts are chosen.
std::string describe_schedule(const Graph& graph);

// Where two schedules differ first.
struct ScheduleDifference {
  std::size_t line = 0;  // from 1
  std::string first;     // what the first has there; "" where it has ended
  std::string second;
};
std::optional<ScheduleDifference> first_difference(const std::string& first,
                                                   const std::string& second);

}  // namespace lockstep
