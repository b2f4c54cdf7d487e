// Helpers for tests of passes: the nodes of a graph, and its results.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "lockstep/base/random.h"
#include "lockstep/exec/executor.h"
#include "lockstep/plan/plan.h"

namespace lockstep {

inline int count(const Graph& graph, Op op) {
  return static_cast<int>(std::ranges::count(graph.nodes(), op, &Node::op));
}

// The only node with this op.
inline const Node& only(const Graph& graph, Op op) {
  EXPECT_EQ(count(graph, op), 1) << print(graph);
  return *std::ranges::find(graph.nodes(), op, &Node::op);
}

// All outputs, by name, of a run on random inputs; integers are below five.
inline std::map<std::string, Tensor> run_on_random_inputs(Graph graph,
                                                          const KernelLibrary& library) {
  State state(host(), 1);
  Executor executor(make_plan(std::move(graph), library), library, state);
  for (const auto& [name, id] : executor.plan().graph.inputs()) {
    Tensor input = executor.input(name);
    RandomSequence random(1, hash_name(name));
    if (input.dtype() == DType::I32) {
      for (std::int32_t& each : input.values<std::int32_t>()) {
        each = static_cast<std::int32_t>(random.below(5));
      }
    } else {
      for (float& each : input.values<float>()) each = static_cast<float>(random.normal());
    }
  }
  executor.run();
  std::map<std::string, Tensor> results;
  for (const auto& [name, id] : executor.plan().graph.outputs()) {
    results[name] = executor.output(name).clone();
  }
  return results;
}

}  // namespace lockstep
