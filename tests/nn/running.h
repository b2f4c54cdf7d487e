// Runs small graphs with the reference kernels.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "lockstep/exec/executor.h"
#include "lockstep/graph/graph.h"
#include "lockstep/kernels/kernel.h"
#include "lockstep/plan/plan.h"

namespace lockstep {

using Feeds = std::map<std::string, Tensor>;

// Runs one step; returns the graph's outputs.
inline std::map<std::string, Tensor> run_step(Graph graph, const Feeds& feeds, State& state) {
  std::vector<std::string> names;
  for (const auto& [name, id] : graph.outputs()) names.push_back(name);
  Executor executor(make_plan(std::move(graph), reference_kernels()), reference_kernels(), state);
  for (const auto& [name, value] : feeds) executor.input(name).copy_from(value);
  executor.run();
  std::map<std::string, Tensor> results;
  for (const std::string& name : names) results[name] = executor.output(name).clone();
  return results;
}

inline Tensor floats(const std::vector<float>& values, Shape shape) {
  return Tensor::of(values, std::move(shape));
}

inline void expect_near(const Tensor& actual, const std::vector<double>& expected,
                        double tolerance = 1e-5) {
  ASSERT_EQ(actual.elements(), static_cast<std::int64_t>(expected.size()));
  const Tensor doubles = actual.cast(DType::F64);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(doubles.values<double>()[i], expected[i],
                tolerance * std::max(1.0, std::abs(expected[i])))
        << "element " << i;
  }
}

// Runs the statement and expects an error of this type whose message contains the text.
#define EXPECT_ERROR(statement, Type, text)                                             \
  try {                                                                                 \
    statement;                                                                          \
    ADD_FAILURE() << "no error";                                                        \
  } catch (const Type& error) {                                                         \
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what(); \
  }

}  // namespace lockstep
